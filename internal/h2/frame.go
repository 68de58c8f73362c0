package h2

import "encoding/binary"

// Frame types, RFC 9113 section 6.
const (
	frameData = iota
	frameHeaders
	framePriority
	frameReset
	frameSettings
	framePush
	framePing
	frameGoAway
	frameWindow
	frameContinuation
)

// Flags of frames.
const (
	flagAck        = 0x1
	flagEndStream  = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Settings, RFC 9113 section 6.5.2.
const (
	settingTableSize     = 1
	settingPush          = 2
	settingStreams       = 3
	settingWindow        = 4
	settingFrameSize     = 5
	settingHeaderBytes   = 6
	frameHeaderLen       = 9
	minFrameSize         = 16384 // what everybody must take, and all that is sent and taken here
	defaultWindow        = 65535
	maxWindow            = 1<<31 - 1
	maxStreamID          = 1<<31 - 1
	defaultTableSize     = 4096
	preface              = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	pingOfDrain          = "draining" // eight bytes; its answer says that the client has read the GOAWAY before it
	pingOfKeepalive      = "alive?\r\n"
	settingLen, resetLen = 6, 4
)

// Code is the reason in a RST_STREAM or GOAWAY frame, RFC 9113 section 7.
type Code uint32

// The codes that are used here.
const (
	NoError            Code = 0x0
	ProtocolError      Code = 0x1
	InternalError      Code = 0x2
	FlowControlError   Code = 0x3
	SettingsTimeout    Code = 0x4
	StreamClosed       Code = 0x5
	FrameSizeError     Code = 0x6
	RefusedStream      Code = 0x7
	Cancel             Code = 0x8
	CompressionError   Code = 0x9
	EnhanceYourCalm    Code = 0xb
	InadequateSecurity Code = 0xc
)

// frame is one frame as it came; payload points into the bytes received.
type frame struct {
	kind, flags uint8
	stream      uint32
	payload     []byte
}

// frameLen returns the payload length in a frame header.
func frameLen(p []byte) int { return int(p[0])<<16 | int(p[1])<<8 | int(p[2]) }

// parseFrame reads the frame at the start of p, which holds it whole.
func parseFrame(p []byte) frame {
	return frame{p[3], p[4], binary.BigEndian.Uint32(p[5:]) & maxStreamID, p[frameHeaderLen : frameHeaderLen+frameLen(p)]}
}

func appendFrame(b []byte, n int, kind, flags uint8, stream uint32) []byte {
	return append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags, byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func appendReset(b []byte, stream uint32, code Code) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, resetLen, frameReset, 0, stream), uint32(code))
}

func appendWindow(b []byte, stream, n uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, frameWindow, 0, stream), n)
}

func appendSetting(b []byte, id uint16, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, id), value)
}

// unpad returns the payload of a DATA or HEADERS frame without its padding.
func (fr frame) unpad() ([]byte, bool) {
	if fr.flags&flagPadded == 0 {
		return fr.payload, true
	}
	if len(fr.payload) == 0 || int(fr.payload[0]) >= len(fr.payload) {
		return nil, false
	}
	return fr.payload[1 : len(fr.payload)-int(fr.payload[0])], true
}

// splitHeaders turns the frame at b[at:], a HEADERS frame that may be longer
// than anybody takes, into HEADERS and CONTINUATION frames.
func splitHeaders(b []byte, at int, stream uint32) []byte {
	n := len(b) - at - frameHeaderLen
	if n <= minFrameSize {
		b[at], b[at+1], b[at+2] = byte(n>>16), byte(n>>8), byte(n)
		return b
	}
	rest := append([]byte(nil), b[at+frameHeaderLen+minFrameSize:]...)
	b = b[:at+frameHeaderLen+minFrameSize]
	b[at], b[at+1], b[at+2] = byte(minFrameSize>>16), byte(minFrameSize>>8&0xff), byte(minFrameSize&0xff)
	b[at+4] &^= flagEndHeaders
	for len(rest) > 0 {
		k, flags := min(len(rest), minFrameSize), uint8(0)
		if k == len(rest) {
			flags = flagEndHeaders
		}
		b = append(appendFrame(b, k, frameContinuation, flags, stream), rest[:k]...)
		rest = rest[k:]
	}
	return b
}
