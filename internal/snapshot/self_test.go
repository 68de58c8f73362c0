package snapshot

import (
	"errors"
	"testing"
)

func TestWhichSidecarThisIs(t *testing.T) {
	for name, tc := range map[string]struct {
		env  map[string]string
		host string
		want Self
	}{
		"a machine": {nil, "db-7", Self{Version: "1.2.3", Host: "db-7"}},
		"no name":   {nil, "", Self{Version: "1.2.3"}},
		"downward API": {map[string]string{"POD_NAME": "shop-1"}, "node-1",
			Self{Version: "1.2.3", Host: "node-1", Pod: "shop-1"}},
		"attributes of OTel": {map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "a=b, k8s.pod.name=shop%2D2,c"}, "h",
			Self{Version: "1.2.3", Host: "h", Pod: "shop-2"}},
		"both": {map[string]string{"POD_NAME": "shop-1", "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=x"},
			"h", Self{Version: "1.2.3", Host: "h", Pod: "shop-1"}},
		"an escape that is wrong": {map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=%zz"}, "h",
			Self{Version: "1.2.3", Host: "h"}},
	} {
		hostname := func() (string, error) {
			if tc.host == "" {
				return "", errors.New("no name")
			}
			return tc.host, nil
		}
		if got := selfOf("1.2.3", hostname, func(key string) string { return tc.env[key] }); got != tc.want {
			t.Errorf("%s: %+v; want %+v", name, got, tc.want)
		}
	}
}
