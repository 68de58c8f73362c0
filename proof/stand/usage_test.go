package stand

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestUsageOfThisProcess(t *testing.T) {
	before, err := ReadUsage(os.Getpid())
	if err != nil || before.RSS < 1<<20 {
		t.Fatalf("got %+v, %v; want at least a megabyte", before, err)
	}
	worked := soon(t)
	for after := before; after.CPU < before.CPU+20*time.Millisecond; { // this loop is work; a busy machine lets it do little at a time
		if after, err = ReadUsage(os.Getpid()); err != nil || worked.Err() != nil {
			t.Fatalf("got %v after %v, %v; want it to grow with the work done", after.CPU, before.CPU, err)
		}
	}
}

func TestParseStat(t *testing.T) {
	line := "42 (a b) c) S 6" + strings.Repeat(" 0", 9) + " 3 4" + strings.Repeat(" 0", 8) + " 5 0 0"
	want := Usage{CPU: 70 * time.Millisecond, RSS: 5 * 4096}
	if got, err := parseStat(line, 4096); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "42", "42 (x) S 1 2", "42 (x) S" + strings.Repeat(" x", 30),
		"42 (x) S" + strings.Repeat(" 0", 10) + " x" + strings.Repeat(" 0", 30)} {
		if _, err := parseStat(bad, 4096); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}

func TestMachine(t *testing.T) {
	if got, err := ReadMachine(); err != nil || got <= 0 {
		t.Errorf("got %v, %v; want some time", got, err)
	}
	if got, err := parseMachine("cpu  1 2 3 1000 1000 4 5 6 7 8\ncpu0 1"); err != nil || got != 150*time.Millisecond {
		t.Errorf("got %v, %v; want 150 ms", got, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "cpu 1 2 3 4 5 6 x 8"} {
		if _, err := parseMachine(bad); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}

func TestOwnGrowsWithTheWorkDone(t *testing.T) {
	before, worked := Own(), soon(t)
	for Own() == before {
		if worked.Err() != nil {
			t.Fatal("this process has worked and used no time")
		}
	}
}

func TestWhatThisProcessHolds(t *testing.T) {
	before, err := Descriptors(os.Getpid())
	if err != nil || before < 3 {
		t.Fatalf("got %d descriptors, %v", before, err)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if after, err := Descriptors(os.Getpid()); err != nil || after != before+1 {
		t.Errorf("got %d descriptors after one was opened, %d before, %v", after, before, err)
	}
	anonymous, anonymousErr := Anonymous(os.Getpid())
	peak, peakErr := Peak(os.Getpid())
	if anonymous < 1<<20 || peak < anonymous || anonymousErr != nil || peakErr != nil {
		t.Errorf("got %d bytes, %v, at most %d, %v", anonymous, anonymousErr, peak, peakErr)
	}
	if resident, own, err := Memory(os.Getpid()); err != nil || own < 1<<20 || resident <= own {
		t.Errorf("got %d bytes, %d of them without a file, %v", resident, own, err)
	}
	_, descriptorsErr := Descriptors(1 << 30)
	_, anonymousErr = Anonymous(1 << 30)
	_, _, memoryErr := Memory(1 << 30)
	if descriptorsErr == nil || anonymousErr == nil || memoryErr == nil {
		t.Errorf("got %v, %v, %v of a process that is not there; want errors", descriptorsErr, anonymousErr, memoryErr)
	}
}
