package h2

import "encoding/binary"

func (c *Conn) settings(fr frame) *ConnError {
	if fr.stream != 0 {
		return &ConnError{ProtocolError, "SETTINGS on a stream"}
	}
	p := fr.payload
	if fr.flags&flagAck != 0 {
		if len(p) != 0 {
			return &ConnError{FrameSizeError, "SETTINGS acknowledgement with a payload"}
		}
		if c.unacked > 0 {
			c.unacked--
			return nil
		}
		return c.spend()
	}
	if len(p)%settingLen != 0 {
		return &ConnError{FrameSizeError, "SETTINGS not of whole settings"}
	}
	c.settled, c.settledAt = true, c.f.now
	window := c.initialWindow
	for ; len(p) > 0; p = p[settingLen:] {
		if err := c.spend(); err != nil {
			return err
		}
		id, v := binary.BigEndian.Uint16(p), binary.BigEndian.Uint32(p[2:])
		if id == settingWindow {
			if v > maxWindow {
				return &ConnError{FlowControlError, "bad SETTINGS_INITIAL_WINDOW_SIZE"}
			}
			window = int64(v) // the last one counts
			continue
		}
		if err := c.setting(id, v); err != nil {
			return err
		}
	}
	if window != c.initialWindow {
		if c.walks -= len(c.streams.slots); c.walks < 0 {
			c.f.stats.Abuses[ControlFlood]++
			return &ConnError{EnhanceYourCalm, "the windows of too many streams change"}
		}
	}
	if err := c.resizeWindows(window); err != nil {
		return err
	}
	c.out = appendFrame(c.buf(), 0, frameSettings, flagAck, 0)
	c.push()
	c.makeRoom()
	return c.spend()
}

func (c *Conn) setting(id uint16, v uint32) *ConnError {
	switch id {
	case settingTableSize:
		c.encoder.resize(v)
	case settingPush:
		if v > 1 || v == 1 && !c.isClient {
			return &ConnError{ProtocolError, "bad SETTINGS_ENABLE_PUSH"}
		}
	case settingStreams:
		c.maxStreams = v
	case settingHeaderBytes:
		c.headerBytes = int(v)
	case settingFrameSize:
		if v < minFrameSize || v > 1<<24-1 {
			return &ConnError{ProtocolError, "bad SETTINGS_MAX_FRAME_SIZE"}
		}
	}
	return nil
}

// resizeWindows changes the window of new streams, and what is left of that of each that is open.
func (c *Conn) resizeWindows(to int64) *ConnError {
	delta := to - c.initialWindow
	if delta == 0 {
		return nil
	}
	c.initialWindow = to
	for _, s := range c.streams.slots {
		if s == nil {
			continue
		}
		if s.window += delta; s.window > maxWindow {
			return &ConnError{FlowControlError, "SETTINGS_INITIAL_WINDOW_SIZE overflows a window"}
		}
		if s.window > 0 && s.sent < len(s.pending) {
			c.ready.push(s)
		} else if s.window <= 0 {
			c.ready.remove(s)
		}
	}
	return nil
}

// wait has a call resumed when the connection has room. False: too many wait. Config.Held is held.
func (l *load) wait(call *Call, held int) bool {
	most := 2 * held // more than unpark leaves
	if len(l.waiting) == cap(l.waiting) || len(l.waiting) >= most {
		l.forgetEnded()
	}
	if len(l.waiting) >= most {
		return false
	}
	l.waiting = append(l.waiting, call.Ticket())
	return true
}

// makeRoom looks again at the calls that wait for the connection.
func (c *Conn) makeRoom() {
	if (len(c.waiting) > 0 || c.Others != nil) && !c.roomy {
		c.roomy = true
		c.f.roomy = append(c.f.roomy, c)
	}
}

func (c *Conn) ping(fr frame) *ConnError {
	if fr.stream != 0 {
		return &ConnError{ProtocolError, "PING on a stream"}
	}
	if len(fr.payload) != 8 {
		return &ConnError{FrameSizeError, "PING is not 8 bytes"}
	}
	if fr.flags&flagAck == 0 {
		c.out = append(appendFrame(c.buf(), 8, framePing, flagAck, 0), fr.payload...)
	} else if string(fr.payload) == pingOfDrain {
		c.goFinally()
	}
	return c.spend()
}

func (c *Conn) sayGoAway(last uint32, code Code, reason string) {
	b := appendFrame(c.buf(), 8+len(reason), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	c.out = append(b, reason...)
}

// Drain lets the calls of a connection end and takes no new ones; then it is
// finished. A client is told so, and has a round trip's time to stop opening streams.
func (c *Conn) Drain() {
	if c.lingers {
		c.lingers = false
		c.settle()
	}
	c.drain()
}

// Retire is Drain for a client's connection that has time until Drain is called: streams that are nothing to wait for
// do not end before.
func (c *Conn) Retire() {
	if !c.draining {
		c.lingers = true
		c.drain()
	}
}

func (c *Conn) drain() {
	if c.finished || c.draining {
		return
	}
	c.draining, c.drained = true, c.f.now
	if c.isClient && c.greeted {
		c.sayDrain()
	} else if !c.isClient {
		c.makeRoom()
		c.settle()
	}
	c.f.resumeWaiting()
}

func (c *Conn) sayDrain() {
	c.sayGoAway(maxStreamID, NoError, "")
	c.out = append(appendFrame(c.buf(), 8, framePing, 0, 0), pingOfDrain...)
}

// goFinally ends the time in which a client that drains may open streams.
func (c *Conn) goFinally() {
	if c.draining && c.goneAt == maxStreamID {
		if c.goneAt = c.lastID; c.greeted {
			c.sayGoAway(c.lastID, NoError, "")
		}
	}
}

func (c *Conn) goAway(fr frame) *ConnError {
	if fr.stream != 0 {
		return &ConnError{ProtocolError, "GOAWAY on a stream"}
	}
	if len(fr.payload) < 8 {
		return &ConnError{FrameSizeError, "GOAWAY is too short"}
	}
	c.f.stats.GoAways++
	if c.isClient { // it takes no streams of ours, of which there are none; its own may still come behind this
		return c.spend()
	}
	last := binary.BigEndian.Uint32(fr.payload) & maxStreamID
	c.draining = true
	for _, s := range append([]*stream(nil), c.streams.slots...) {
		if s != nil && s.conn == c && s.id > last {
			s.close()
			s.drop()
			s.call.disown()
		}
	}
	c.makeRoom()
	return c.spend()
}

// disown ends a call of which its node says that it was not executed. That is wrong of one that was answered.
func (c *Call) disown() {
	switch {
	case c.node.gotEnd:
		c.settle()
	case c.outcome.FirstByte != 0:
		c.outcome.End = Broken
		c.fail(c.whenCut())
	default:
		c.refuse()
	}
}

// refuse ends a call that was surely not executed, so that the client may send it again.
func (c *Call) refuse() {
	c.outcome.End = Refused
	c.client.reset(RefusedStream)
	c.finish()
}

func (c *Conn) windowUpdate(fr frame) *ConnError {
	if len(fr.payload) != 4 {
		return &ConnError{FrameSizeError, "WINDOW_UPDATE is not 4 bytes"}
	}
	n := int64(binary.BigEndian.Uint32(fr.payload) & maxStreamID)
	if fr.stream == 0 {
		if n == 0 {
			return &ConnError{ProtocolError, "WINDOW_UPDATE of 0"}
		}
		if c.window += n; c.window > maxWindow {
			return &ConnError{FlowControlError, "WINDOW_UPDATE overflows the window"}
		}
		c.push()
		return c.spend()
	}
	s := c.streams.get(fr.stream)
	if s == nil {
		if err := c.unknown(fr); err != nil {
			return err
		}
		return c.spend()
	}
	if n == 0 {
		return s.fail(ProtocolError, "WINDOW_UPDATE of 0")
	}
	if s.window += n; s.window > maxWindow {
		return s.fail(FlowControlError, "WINDOW_UPDATE overflows the window")
	}
	s.ripen()
	return c.spend()
}
