package wire

import (
	"encoding/binary"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
	"github.com/ydb-sidecar/sidecar/internal/ydbstatus"
)

// severityError is that of YDB's issues.
const severityError = 1

// issueNoTx is the code of YDB's issue for a transaction that is not there.
const issueNoTx = 2015

// refusal returns an answer of the method's own type that carries a status and one
// issue, or nil if its answers have no place for them.
func (m *Method) refusal(status Ydb.StatusIds_StatusCode, text string) []byte {
	return m.refusalWith(status, 0, text)
}

// refusalWith is refusal with a code of the issue; 0: none.
func (m *Method) refusalWith(status Ydb.StatusIds_StatusCode, code uint32, text string) []byte {
	var issue []byte
	issue = protowire.AppendTag(issue, 2, protowire.BytesType)
	issue = protowire.AppendString(issue, text)
	if code > 0 {
		issue = protowire.AppendTag(issue, 4, protowire.VarintType)
		issue = protowire.AppendVarint(issue, uint64(code))
	}
	issue = protowire.AppendTag(issue, 5, protowire.VarintType)
	issue = protowire.AppendVarint(issue, severityError)
	put := func(b []byte, statusField, issuesField protowire.Number) []byte {
		b = protowire.AppendTag(b, statusField, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(status))
		b = protowire.AppendTag(b, issuesField, protowire.BytesType)
		return protowire.AppendBytes(b, issue)
	}
	ready := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)
	switch m.style {
	case stylePlain:
		return put(nil, 1, 2)
	case styleBare:
		return put(ready, 3, 4)
	case styleOperation:
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), put(ready, 3, 4))
	}
	return nil
}

// success returns an answer of the method's own type. fields are those of a plain answer
// behind its status, or those of the operation's result, which is of such a type.
func (m *Method) success(typ string, fields []byte) []byte {
	const status = uint64(Ydb.StatusIds_SUCCESS)
	if m.style == stylePlain {
		return append(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), status), fields...)
	}
	op := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)
	op = protowire.AppendVarint(protowire.AppendTag(op, 3, protowire.VarintType), status)
	if typ != "" {
		result := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "type.googleapis.com/"+typ)
		result = protowire.AppendBytes(protowire.AppendTag(result, 2, protowire.BytesType), fields)
		op = protowire.AppendBytes(protowire.AppendTag(op, 5, protowire.BytesType), result)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), op)
}

// plainSuccess is what most answers of stylePlain begin with: status = SUCCESS.
var plainSuccess = string(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(Ydb.StatusIds_SUCCESS)))

// prefix is the flag and length before a message of gRPC.
const prefix = 5

// status reads YDB's status out of the first octets of an answer's body; 0: it is
// not among them, or the message is compressed.
func (m *Method) status(body []byte) Ydb.StatusIds_StatusCode {
	if len(body) < prefix || body[0] != 0 {
		return 0
	}
	size := binary.BigEndian.Uint32(body[1:])
	body = body[prefix:]
	return m.statusOf(body[:min(uint64(len(body)), uint64(size))])
}

// statusOf is status for the start of a message.
func (m *Method) statusOf(body []byte) Ydb.StatusIds_StatusCode {
	if m.style == styleNone {
		return 0
	}
	wanted := protowire.Number(1)
	switch m.style {
	case styleOperation:
		number, kind, n := protowire.ConsumeTag(body)
		if n < 0 || number != 1 || kind != protowire.BytesType {
			return 0
		}
		body = body[n:]
		if _, n = protowire.ConsumeVarint(body); n < 0 {
			return 0
		}
		body, wanted = body[n:], 3
	case styleBare:
		wanted = 3
	default:
		if len(body) >= len(plainSuccess) && string(body[:len(plainSuccess)]) == plainSuccess { // as usual
			return Ydb.StatusIds_SUCCESS
		}
	}
	for len(body) > 0 {
		number, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return 0
		}
		body = body[n:]
		if number == wanted && kind == protowire.VarintType {
			v, n := protowire.ConsumeVarint(body)
			if n < 0 || v > 1<<30 {
				return 0
			}
			return Ydb.StatusIds_StatusCode(v)
		}
		if n = protowire.ConsumeFieldValue(number, kind, body); n < 0 {
			return 0
		}
		body = body[n:]
	}
	return 0
}

// congestion reads out of the first octets of an answer's body what the issues say has too much
// to do, and its name. The last of them may be cut off.
func (m *Method) congestion(body []byte) (c cluster.Congestion, subject string) {
	if len(body) < prefix || body[0] != 0 {
		return 0, ""
	}
	size := binary.BigEndian.Uint32(body[1:])
	body = body[prefix:]
	body = body[:min(uint64(len(body)), uint64(size))]
	issues := protowire.Number(2)
	switch m.style {
	case styleNone:
		return 0, ""
	case styleOperation:
		issues = 4
		eachField(body, func(number protowire.Number, value []byte) {
			if number == 1 {
				body = value
			}
		})
	case styleBare:
		issues = 4
	}
	congestionOf(body, issues, &c, &subject, 0)
	return c, subject
}

// The fields of an issue.
const (
	issueMessage = 2
	issueCode    = 4
	issueIssues  = 6

	maxIssueDepth = 8
)

// congestionOf looks at the issues that are fields of a message.
func congestionOf(message []byte, issues protowire.Number, c *cluster.Congestion, subject *string, depth int) {
	if depth == maxIssueDepth {
		return
	}
	eachField(message, func(number protowire.Number, issue []byte) {
		if number != issues {
			return
		}
		var text string
		code := uint64(0)
		eachField(issue, func(number protowire.Number, value []byte) {
			switch number {
			case issueMessage:
				text = string(value)
			case issueCode:
				code, _ = protowire.ConsumeVarint(value)
			}
		})
		if is, name := ydbstatus.Congested(uint32(code), text); is > *c {
			*c, *subject = is, name
		}
		congestionOf(issue, issueIssues, c, subject, depth+1)
	})
}

// eachField calls f with the fields of a message that may be cut off: of octets the value, of
// the last one what is there of it; of others the octets of the number.
func eachField(message []byte, f func(number protowire.Number, value []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		if kind == protowire.BytesType {
			size, n := protowire.ConsumeVarint(message)
			if n < 0 {
				return
			}
			message = message[n:]
			value := message[:min(uint64(len(message)), size)]
			f(number, value)
			message = message[len(value):]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return
		}
		f(number, message[:n])
		message = message[n:]
	}
}
