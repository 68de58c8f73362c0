package contract

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// driver is a client library in another language, behind a program that makes the calls of the cases with it. driver.md has the protocol.
type driver struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *bytes.Buffer

	mu sync.Mutex // one call at a time
}

// OverDriver starts a driver (driver.md): a program whose last argument is the address of a sidecar, http://host:port or grpc://host:port.
// name is that of the client in the names of tests.
func OverDriver(name string, program ...string) (Client, error) {
	d := &driver{name: name, cmd: exec.Command(program[0], program[1:]...), stderr: &bytes.Buffer{}}
	d.cmd.Stderr = d.stderr
	in, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.in, d.out = in, bufio.NewReader(out)
	return d, d.cmd.Start()
}

func (d *driver) Name() string { return d.name }

// Close ends the driver. One that does not end by itself within ten seconds is killed.
func (d *driver) Close() {
	_ = d.in.Close()
	late := time.AfterFunc(10*time.Second, func() { _ = d.cmd.Process.Kill() })
	defer late.Stop()
	_ = d.cmd.Wait()
}

// answer is one line of a driver.
type answer struct {
	Reply json.RawMessage
	Error *driverProblem
}

// driverProblem is an error as drivers send it.
type driverProblem struct {
	Code, Message, Hint string
	Operator            string `json:"operator_hint"`
	Status              int
	YDBStatus           string `json:"ydb_status"`
	Issues              int
	Safe                bool   `json:"safe_to_retry"`
	Unknown             bool   `json:"outcome_unknown"`
	RetryAfter          int64  `json:"retry_after_ms"`
	TraceID             string `json:"trace_id"`
	Local               bool
}

// localHint stands for the hint of an error that a library raised itself.
const localHint = "the library refused it before anything was sent"

func (p *driverProblem) error() *Error {
	e := &Error{Code: p.Code, Status: p.Status, Message: p.Message, YDB: p.YDBStatus, Issues: p.Issues, Safe: p.Safe, Unknown: p.Unknown,
		RetryAfter: time.Duration(p.RetryAfter) * time.Millisecond, Hint: p.Hint, Operator: p.Operator, TraceID: p.TraceID}
	if p.Local {
		e.Hint, e.Status = localHint, 400
	}
	return e
}

// call sends one request and reads its answer into reply. A call of a driver has no end but its
// answer, so the case's context ends the driver.
func (d *driver) call(ctx context.Context, name string, args object, reply any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	line, err := json.Marshal(object{"call": name, "args": args})
	if err != nil {
		return err
	}
	late := context.AfterFunc(ctx, func() { _ = d.cmd.Process.Kill() })
	defer late()
	if _, err := d.in.Write(append(line, '\n')); err != nil {
		return d.broken(name, err)
	}
	text, err := d.out.ReadBytes('\n')
	if err != nil {
		return d.broken(name, err)
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return d.broken(name, fmt.Errorf("%.300q: %w", text, err))
	}
	if a.Reply != nil {
		read := json.NewDecoder(bytes.NewReader(a.Reply))
		read.UseNumber()
		if err := read.Decode(reply); err != nil {
			return d.broken(name, fmt.Errorf("%.300q: %w", a.Reply, err))
		}
	}
	if a.Error != nil {
		return a.Error.error()
	}
	return nil
}

// broken ends a driver that keeps to no protocol, and returns what it said at last.
func (d *driver) broken(call string, err error) error {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait() // its stderr is whole now
	return fmt.Errorf("the driver of %s, call %s: %w\n%s", d.name, call, err, d.stderr)
}

// argument gives a value the form in which drivers get it.
func argument(v any) any {
	switch v := v.(type) {
	case int:
		return object{"int": strconv.Itoa(v)}
	case int64:
		return object{"int": strconv.FormatInt(v, 10)}
	case uint64:
		return object{"int": strconv.FormatUint(v, 10)}
	case float64:
		return object{"float": v}
	case []byte:
		return object{"bytes": base64.StdEncoding.EncodeToString(v)}
	case []any:
		return object{"list": arguments(v)}
	case map[string]any:
		return object{"struct": named(v)}
	case Typed:
		return object{"typed": object{"type": v.Type, "value": argument(v.Value)}}
	}
	return v
}

func arguments(list []any) []any {
	out := make([]any, len(list))
	for i := range list {
		out[i] = argument(list[i])
	}
	return out
}

func named(m map[string]any) object {
	out := make(object, len(m))
	for name, v := range m {
		out[name] = argument(v)
	}
	return out
}

func (s Statement) args() object {
	o := object{"sql": s.SQL, "params": named(s.Params), "types": s.Types, "mode": s.Mode, "idempotent": s.Idempotent, "timeout": s.Timeout,
		"rows": s.Rows, "bytes": s.Bytes, "stats": s.Stats, "priority": s.Priority, "expect": s.Expect}
	if s.Tx != nil {
		o["tx"] = s.Tx.args()
	}
	return o
}

func (x *TxSelector) args() object {
	return object{"begin": x.Begin, "mode": x.Mode, "id": x.ID, "seq": x.Seq, "commit": x.Commit}
}

func allArgs(list []Statement) []object {
	out := []object{}
	for _, s := range list {
		out = append(out, s.args())
	}
	return out
}
