package memguard

import (
	"testing"
	"testing/fstest"
)

func TestOfContainer(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for _, tc := range []struct {
		name  string
		files fstest.MapFS
		want  int64 // 0: none
	}{
		{"no_groups", fstest.MapFS{}, 0},
		{"version_2_in_a_container",
			fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("268435456\n")}, 256 << 20},
		{"version_2_unlimited", fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("max\n")}, 0},
		{"the_lowest_of_all_above", fstest.MapFS{
			"proc/self/cgroup":                 file("0::/pod/app\n"),
			"sys/fs/cgroup/pod/app/memory.max": file("max\n"), "sys/fs/cgroup/pod/memory.max": file("1000\n"),
			"sys/fs/cgroup/memory.max": file("2000\n"),
		}, 1000},
		{"version_1", fstest.MapFS{
			"proc/self/cgroup": file("3:cpu,cpuacct:/x\n2:memory:/docker/1\n"),
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": file("5000\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          file("9223372036854771712\n"),
		}, 5000},
		{"version_1_unlimited", fstest.MapFS{
			"proc/self/cgroup": file("2:memory:/\n"), "sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, 0},
		{"nonsense", fstest.MapFS{"proc/self/cgroup": file("what\n0::/../..\n"), "sys/fs/cgroup/memory.max": file("-1")}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, ok := OfContainer(tc.files); ok != (tc.want != 0) || ok && got != tc.want {
				t.Errorf("limit %d, %v; want %d", got, ok, tc.want)
			}
		})
	}
}
