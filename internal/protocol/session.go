package protocol

import (
	"bytes"
	"math"

	"github.com/ydb-sidecar/sidecar/internal/cluster"
)

var nodeKey = []byte("node_id=")

// HomeNode returns the node that a session's id names: ydb://session/3?node_id=N&id=X.
// 0: it names none.
func HomeNode(session []byte) cluster.NodeID {
	for {
		i := bytes.Index(session, nodeKey)
		if i < 0 {
			return 0
		}
		key := i > 0 && (session[i-1] == '?' || session[i-1] == '&')
		session = session[i+len(nodeKey):]
		if !key {
			continue
		}
		n := uint64(0)
		for _, c := range session {
			if c < '0' || c > '9' {
				break
			}
			if n = n*10 + uint64(c-'0'); n > math.MaxUint32 {
				return 0
			}
		}
		return cluster.NodeID(n)
	}
}

// SessionOf finds the session's id in a message of which the end may be missing.
// enough is false if more of it is needed to tell. A message whose first field comes
// after the one wanted has none: all that write protobuf write in order of numbers,
// and where one does not, any node takes any session, by a hop inside the cluster.
func SessionOf(message []byte, whole bool, path []int) (session []byte, enough bool) {
	session, _, to := Field(message, path[0])
	if to == 0 {
		return nil, whole || FirstField(message) > path[0]
	}
	for _, number := range path[1:] {
		session, _, _ = Field(session, number)
	}
	return session, true
}

// FirstField returns the number of the first field, 0 if it is not here yet.
func FirstField(message []byte) int {
	n := uint64(0)
	for i := 0; i < len(message) && i < 5; i++ {
		n |= uint64(message[i]&0x7f) << (7 * i)
		if message[i] < 0x80 {
			return int(n >> 3)
		}
	}
	return 0
}
