package lease

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestEndUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, bank := start(t, Config{Idle: 30 * time.Second, Max: time.Minute, Limit: 10})
		sleep := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		forgotten, used := grant(t, table, 1), grant(t, table, 2)
		sleep(15 * time.Second)
		if _, left, err := lookLeft(table, used); left != 15*time.Second || err != nil {
			t.Errorf("%v left, %v; want 15s", left, err)
		}
		table.EndUnused(10 * time.Second) // what was before does not count
		sleep(10*time.Second - time.Millisecond)
		bank.wants(t)
		take(t, table, used, Step{Seq: 1}).Keep(nil)
		sleep(time.Millisecond)
		bank.wants(t, "1 unused")
		over(t, table, forgotten, Step{Seq: 1}, Unused)
		if _, left, err := lookLeft(table, used); left != 10*time.Second-time.Millisecond || err != nil {
			t.Errorf("%v left, %v; want 9.999s", left, err)
		}
		sleep(10 * time.Second)
		bank.wants(t, "1 unused", "2 unused")
	})
}

// Config.Idle and Config.Max still hold.
func TestEndUnusedMakesNoLeaseLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, bank := start(t, Config{Idle: 5 * time.Second, Max: time.Minute, Limit: 10})
		grant(t, table, 1)
		table.EndUnused(time.Hour)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		bank.wants(t, "1 idle")
	})
}

func lookLeft(table *Table[int, string], token string) (Info, time.Duration, error) {
	info, _, err := table.Look(token)
	return info, info.Expires, err
}
