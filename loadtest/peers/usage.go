package peers

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc: USER_HZ, 100 a second on every
// architecture that Go runs on.
const tick = 10 * time.Millisecond

// usage is CPU time.
type usage struct{ user, system time.Duration }

func (u usage) total() time.Duration { return u.user + u.system }

func (u usage) minus(v usage) usage { return usage{u.user - v.user, u.system - v.system} }

// processes is what /proc says of all processes at a moment.
type processes map[int]process

type process struct {
	parent int
	used   usage
}

// readProcesses reads /proc. Processes that end meanwhile are left out.
func readProcesses() (processes, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all := processes{}
	for _, name := range entries {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue // no process
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has ended
		}
		if all[pid], err = parseProcess(string(stat)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// parseProcess reads fields 4, 14 and 15 of /proc/PID/stat. Field 2 is the name in
// brackets and may hold blanks, so counting begins behind its last bracket.
func parseProcess(stat string) (process, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // fields[0] is field 3
	if len(fields) < 13 {
		return process{}, fmt.Errorf("not what /proc/PID/stat looks like: %.80q", stat)
	}
	parent, err := strconv.Atoi(fields[1])
	user, userErr := strconv.ParseInt(fields[11], 10, 64)
	system, systemErr := strconv.ParseInt(fields[12], 10, 64)
	return process{parent, usage{time.Duration(user) * tick, time.Duration(system) * tick}}, errors.Join(err, userErr, systemErr)
}

// tree returns a process and all that descend from it.
func (all processes) tree(root int) (pids []int) {
	for pid := range all {
		for p := pid; p > 1; p = all[p].parent {
			if p == root {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// used adds up the CPU time of a tree.
func (all processes) used(root int) (sum usage) {
	for _, pid := range all.tree(root) {
		sum.user += all[pid].used.user
		sum.system += all[pid].used.system
	}
	return sum
}

// ReadMemory adds up the resident and the anonymous memory of processes, in octets.
func ReadMemory(pids []int) (resident, anonymous int64, err error) {
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
		}
		for line := range strings.Lines(string(data)) {
			name, rest, _ := strings.Cut(line, ":")
			kilo, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64) // 0: not a size
			switch name {
			case "Rss":
				resident += kilo << 10
			case "Anonymous":
				anonymous += kilo << 10
			}
		}
	}
	return resident, anonymous, nil
}
