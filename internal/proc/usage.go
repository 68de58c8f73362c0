package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what the kernel says of a process.
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
	usage, err := parseStat(string(stat), int64(os.Getpagesize()))
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of process %d: %w", pid, err)
	}
	return usage, nil
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
