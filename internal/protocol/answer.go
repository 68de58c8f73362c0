package protocol

import (
	"bytes"
	"encoding/binary"

	"github.com/ydb-platform/ydb-go-genproto/protos/Ydb"
	"google.golang.org/protobuf/encoding/protowire"
)

// SeverityError is that of YDB's issues.
const SeverityError = 1

// IssueNoTx is the code of YDB's issue for a transaction that is not there.
const IssueNoTx = 2015

// IssueConstraint is the code of YDB's issue for a row that breaks a rule of its table: one that is there already, or a column
// without a value that must have one. It comes of a statement's execution alone.
const IssueConstraint = 2012

// Refusal returns an answer of the method's own type that carries a status and one
// issue, or nil if its answers have no place for them.
func (m *Method) Refusal(status Ydb.StatusIds_StatusCode, text string) []byte {
	return m.RefusalWith(status, 0, text)
}

// RefusalWith is Refusal with a code of the issue; 0: none.
func (m *Method) RefusalWith(status Ydb.StatusIds_StatusCode, code uint32, text string) []byte {
	var issue []byte
	issue = protowire.AppendTag(issue, 2, protowire.BytesType)
	issue = protowire.AppendString(issue, text)
	if code > 0 {
		issue = protowire.AppendTag(issue, 4, protowire.VarintType)
		issue = protowire.AppendVarint(issue, uint64(code))
	}
	issue = protowire.AppendTag(issue, 5, protowire.VarintType)
	issue = protowire.AppendVarint(issue, SeverityError)
	put := func(b []byte, statusField, issuesField protowire.Number) []byte {
		b = protowire.AppendTag(b, statusField, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(status))
		b = protowire.AppendTag(b, issuesField, protowire.BytesType)
		return protowire.AppendBytes(b, issue)
	}
	ready := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)
	switch m.Style {
	case StylePlain:
		return put(nil, 1, 2)
	case StyleBare:
		return put(ready, 3, 4)
	case StyleOperation:
		return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), put(ready, 3, 4))
	}
	return nil
}

// Success returns an answer of the method's own type. fields are those of a plain answer
// behind its status, or those of the operation's result, which is of such a type.
func (m *Method) Success(typ string, fields []byte) []byte {
	const status = uint64(Ydb.StatusIds_SUCCESS)
	if m.Style == StylePlain {
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

// plainSuccess is what most answers of StylePlain begin with: status = SUCCESS.
var plainSuccess = string(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(Ydb.StatusIds_SUCCESS)))

// PrefixSize is that of the flag and length before a message of gRPC.
const PrefixSize = 5

// Status reads YDB's status out of the first bytes of an answer's body; 0: it is
// not among them, or the message is compressed.
func (m *Method) Status(body []byte) Ydb.StatusIds_StatusCode {
	if len(body) < PrefixSize || body[0] != 0 {
		return 0
	}
	size := binary.BigEndian.Uint32(body[1:])
	body = body[PrefixSize:]
	return m.StatusOf(body[:min(uint64(len(body)), uint64(size))])
}

// StatusOf is Status for the start of a message.
func (m *Method) StatusOf(body []byte) Ydb.StatusIds_StatusCode {
	if m.Style == StyleNone {
		return 0
	}
	wanted := protowire.Number(1)
	switch m.Style {
	case StyleOperation:
		number, kind, n := protowire.ConsumeTag(body)
		if n < 0 || number != 1 || kind != protowire.BytesType {
			return 0
		}
		body = body[n:]
		if _, n = protowire.ConsumeVarint(body); n < 0 {
			return 0
		}
		body, wanted = body[n:], 3
	case StyleBare:
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

// Issues calls f with the code, 0: none, and the text of each issue in the first bytes of an answer's body, those
// within others behind them. The last of them may be cut off.
func (m *Method) Issues(body []byte, f func(code uint32, text string)) {
	if len(body) < PrefixSize || body[0] != 0 {
		return
	}
	size := binary.BigEndian.Uint32(body[1:])
	body = body[PrefixSize:]
	body = body[:min(uint64(len(body)), uint64(size))]
	issues := protowire.Number(2)
	switch m.Style {
	case StyleNone:
		return
	case StyleOperation:
		issues = 4
		EachField(body, func(number protowire.Number, value []byte) {
			if number == 1 {
				body = value
			}
		})
	case StyleBare:
		issues = 4
	}
	eachIssue(body, issues, f, 0)
}

// The fields of an issue.
const (
	issueMessage = 2
	issueCode    = 4
	issueIssues  = 6

	maxIssueDepth = 8
)

// eachIssue is Issues for those that are fields of a message.
func eachIssue(message []byte, issues protowire.Number, f func(code uint32, text string), depth int) {
	if depth == maxIssueDepth {
		return
	}
	EachField(message, func(number protowire.Number, issue []byte) {
		if number != issues {
			return
		}
		var text string
		code := uint64(0)
		EachField(issue, func(number protowire.Number, value []byte) {
			switch number {
			case issueMessage:
				text = string(value)
			case issueCode:
				code, _ = protowire.ConsumeVarint(value)
			}
		})
		f(uint32(code), text)
		eachIssue(issue, issueIssues, f, depth+1)
	})
}

// HeaderHints names what a server asks of the client whose call it answers.
const HeaderHints = "x-ydb-server-hints"

// SaysClose reports whether a value of HeaderHints, which is a list, asks its client to let go of the session.
func SaysClose(hints []byte) bool {
	for hint := range bytes.SplitSeq(hints, []byte{','}) {
		if string(bytes.TrimSpace(hint)) == "session-close" {
			return true
		}
	}
	return false
}
