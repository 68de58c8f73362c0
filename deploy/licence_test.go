package deploy

import (
	"bytes"
	"os"
	"testing"
)

// Whatever is packed from a folder of its own has the licence in that folder.
func TestEachPackageHasTheLicence(t *testing.T) {
	want, err := os.ReadFile("../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{
		"deploy/helm/ydb-sidecar", "deploy/helm/ydb-sidecar-monitoring", "clients/node", "clients/python",
	} {
		if got, err := os.ReadFile("../" + folder + "/LICENSE"); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s/LICENSE is not that of the repository (%v): cp LICENSE %s/", folder, err, folder)
		}
	}
}
