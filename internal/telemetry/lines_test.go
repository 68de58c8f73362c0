package telemetry

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipe is a writer whose reader may have stopped.
type pipe struct {
	reads chan struct{} // capacity 1: holds a token while somebody reads
	wrote bytes.Buffer
}

func newPipe() *pipe {
	p := &pipe{reads: make(chan struct{}, 1)}
	p.reads <- struct{}{}
	return p
}

func (p *pipe) Write(b []byte) (int, error) {
	<-p.reads
	defer func() { p.reads <- struct{}{} }()
	return p.wrote.Write(b)
}

// A reader that stalls holds up nobody; what it missed is counted, and said when it is back.
func TestLinesDoNotWaitForTheirReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe()
		lines := NewLines(p)
		log := NewLogger(lines, LogConfig{Format: "text"}, nil)
		log.Info("first")
		synctest.Wait()
		const bytesOfLine = 100
		<-p.reads
		for i := range 3 * maxWaiting / bytesOfLine {
			log.Info(strings.Repeat("x", bytesOfLine), "n", i)
		}
		lost := lines.Lost()
		began := time.Now()
		lines.Flush(time.Second)
		if took := time.Since(began); took != time.Second {
			t.Errorf("Flush took %v; want its limit", took)
		}
		p.reads <- struct{}{}
		lines.Flush(time.Hour)
		log.Info("last")
		lines.Flush(time.Hour)
		got := p.wrote.String()
		if lost == 0 || !strings.Contains(got, fmt.Sprintf("did not keep up\" lines=%d", lost)) || lines.Lost() != lost {
			t.Errorf("%d lines lost, then %d; the log ends %q", lost, lines.Lost(), got[max(0, len(got)-300):])
		}
		all := strings.Split(strings.TrimSpace(got), "\n")
		if n := len(all) - 3; n+int(lost) != 3*maxWaiting/bytesOfLine {
			t.Errorf("%d lines written and %d lost of %d", n, lost, 3*maxWaiting/bytesOfLine)
		}
		if !strings.Contains(all[0], "msg=first") || !strings.Contains(all[len(all)-1], "msg=last") ||
			strings.Count(got, "did not keep up") != 1 {
			t.Errorf("first %q, last %q", all[0], all[len(all)-1])
		}
		if cap(lines.waiting)+cap(lines.spare) > 4*maxWaiting {
			t.Errorf("%d bytes are kept", cap(lines.waiting)+cap(lines.spare))
		}
	})
}

// The line about dropped lines is not dropped, although the room fills up again just before it.
func TestTheLineAboutLossIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe()
		lines := NewLines(p)
		NewLogger(lines, LogConfig{Format: "text"}, nil)
		full := append(bytes.Repeat([]byte("x"), maxWaiting-1), '\n')
		tell := lines.tell
		lines.tell = func(lost uint64) {
			lines.tell = tell
			_, _ = lines.Write(full)
			tell(lost)
		}
		<-p.reads
		_, _ = lines.Write([]byte("first\n"))
		synctest.Wait() // it is being written
		_, _ = lines.Write(full)
		for range 5 {
			_, _ = lines.Write([]byte("dropped\n"))
		}
		p.reads <- struct{}{}
		lines.Flush(time.Hour)
		got := p.wrote.String()
		if strings.Count(got, "did not keep up") != 1 || !strings.Contains(got, "did not keep up\" lines=5\n") || lines.Lost() != 5 {
			t.Errorf("%d lines lost; the log has %q", lines.Lost(), strings.ReplaceAll(got, "xxxx", ""))
		}
	})
}

// Lines of many writers come whole, and in the order of each.
func TestLinesOfManyWriters(t *testing.T) {
	p := newPipe()
	lines := NewLines(p)
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := range 500 {
				fmt.Fprintf(lines, "%d %d\n", w, i)
			}
		})
	}
	writers.Wait()
	lines.Flush(time.Minute)
	next := map[int]int{}
	for line := range strings.Lines(p.wrote.String()) {
		var w, i int
		if _, err := fmt.Sscanf(line, "%d %d\n", &w, &i); err != nil || i != next[w] {
			t.Fatalf("%q, %v; want %d of writer %d", line, err, next[w], w)
		}
		next[w]++
	}
	if len(next) != 8 || lines.Lost() != 0 {
		t.Errorf("%v, %d lost", next, lines.Lost())
	}
}
