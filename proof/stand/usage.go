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
	CPU time.Duration // user and system, of all its threads, since its start; grain 10 ms
	RSS int64         // resident memory, bytes
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
	return one, nil
}

// parseStat reads fields 14, 15 and 24 of /proc/PID/stat. Field 2 is the name
// in brackets and may hold blanks, so counting begins behind its last bracket.
func parseStat(stat string, page int64) (Usage, error) {
	_, rest, ok := strings.Cut(stat[max(0, strings.LastIndexByte(stat, ')')):], ") ")
	fields := strings.Fields(rest) // fields[0] is field 3
	if !ok || len(fields) < 22 {
		return Usage{}, fmt.Errorf("not what /proc/PID/stat looks like: %.80q", stat)
	}
	var n [3]int64
	for i, field := range []int{14, 15, 24} {
		var err error
		if n[i], err = strconv.ParseInt(fields[field-3], 10, 64); err != nil {
			return Usage{}, fmt.Errorf("field %d: %w", field, err)
		}
	}
	return Usage{CPU: time.Duration(n[0]+n[1]) * tick, RSS: n[2] * page}, nil
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
