package stand

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a process has used so far, as /proc/PID/stat reports it.
type Usage struct {
	CPU  time.Duration // user and system, of all its threads, since its start; grain 10 ms
	User time.Duration // the part of CPU outside of the kernel
	RSS  int64         // resident memory, bytes
}

// Minus returns the CPU time used since an earlier reading, with the memory of the later one.
func (u Usage) Minus(earlier Usage) Usage {
	return Usage{u.CPU - earlier.CPU, u.User - earlier.User, u.RSS}
}

// tick is the unit of CPU times in /proc: USER_HZ, 100 a second on every
// architecture that Go runs on.
const tick = 10 * time.Millisecond

// ReadUsage returns the usage of the process with the given id.
func ReadUsage(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of process %d: %w", pid, err)
	}
	one, err := parseStat(string(stat), int64(os.Getpagesize()))
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of process %d: %w", pid, err)
	}
	return one.Usage, nil
}

// process is what /proc/PID/stat reports.
type process struct {
	parent int
	Usage
}

// parseStat reads fields 4, 14, 15 and 24 of /proc/PID/stat. Field 2 is the name
// in brackets and may hold blanks, so counting begins behind its last bracket.
func parseStat(stat string, page int64) (process, error) {
	_, rest, ok := strings.Cut(stat[max(0, strings.LastIndexByte(stat, ')')):], ") ")
	fields := strings.Fields(rest) // fields[0] is field 3
	if !ok || len(fields) < 22 {
		return process{}, fmt.Errorf("not what /proc/PID/stat looks like: %.80q", stat)
	}
	var n [4]int64
	for i, field := range []int{4, 14, 15, 24} {
		var err error
		if n[i], err = strconv.ParseInt(fields[field-3], 10, 64); err != nil {
			return process{}, fmt.Errorf("field %d: %w", field, err)
		}
	}
	user, system := time.Duration(n[1])*tick, time.Duration(n[2])*tick
	return process{int(n[0]), Usage{CPU: user + system, User: user, RSS: n[3] * page}}, nil
}

// Processes is what /proc reports of all processes at one moment, by process id.
type Processes map[int]process

// ReadProcesses reads /proc. Processes that end meanwhile are left out.
func ReadProcesses() (Processes, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all, page := Processes{}, int64(os.Getpagesize())
	for _, name := range entries {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue // no process
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has ended
		}
		if all[pid], err = parseStat(string(stat), page); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Tree returns a process and all that descend from it.
func (all Processes) Tree(root int) (pids []int) {
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

// Used adds up the usage of a tree.
func (all Processes) Used(root int) (sum Usage) {
	for _, pid := range all.Tree(root) {
		one := all[pid].Usage
		sum = Usage{sum.CPU + one.CPU, sum.User + one.User, sum.RSS + one.RSS}
	}
	return sum
}

// Own returns the CPU time of all threads of this process, with a fine grain.
func Own() time.Duration {
	var used unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &used) // it cannot fail for oneself
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// ReadMachine returns the CPU time that all processes of the machine have used
// since its start.
func ReadMachine() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the usage of the machine: %w", err)
	}
	used, err := parseMachine(string(stat))
	if err != nil {
		return 0, fmt.Errorf("read the usage of the machine: %w", err)
	}
	return used, nil
}

// parseMachine adds up the first line of /proc/stat without what is idle time:
// "cpu user nice system idle iowait irq softirq ...".
func parseMachine(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("not what /proc/stat looks like: %.80q", line)
	}
	var used time.Duration
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("field %d: %w", i, err)
		}
		used += time.Duration(n) * tick
	}
	return used, nil
}
