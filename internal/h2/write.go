package h2

// lowWater is how much of an answer may still wait for its reader when more of it is asked for: so much leaves while that comes. While
// memory is short it is nothing.
const lowWater = 64 << 10

func (f *Forwarder) lowWater() int {
	if f.tight {
		return 0
	}
	return lowWater
}

// Write sends the next bytes of the answer to a call that is the router's by ErrMine: messages with their prefixes, in pieces of any
// size. The headers, names in lower case and values in turn, go before the first. It keeps nothing of either. Of p it takes the first n
// bytes, so that no more waits for the client than Config.Window; with n < len(p) room gets a value when there is room again, unless it
// has one already. With room nil it takes all. False: the call is over, or was ended, and room gets nothing.
func (f *Forwarder) Write(t Ticket, header []string, p []byte, room chan<- struct{}) (n int, ok bool) {
	if !f.isOpen(t) || t.call.client.conn.finished { // its client is gone, and the call is about to end
		return 0, false
	}
	c, s := t.call, &t.call.client
	f.edits, f.strings = f.edits[:0], f.strings[:0]
	if !s.sentHead {
		f.block.reset()
		f.addHead(header)
		s.headers(f.block.fields, false)
		s.sentHead = true
	}
	most := f.config.Window
	if f.tight {
		most = tightWindow
	}
	for n < len(p) && (room == nil || s.waits() <= f.lowWater()) {
		some := len(p) - n
		if room != nil {
			some = min(some, most-s.waits())
		}
		s.send(p[n:n+some], false)
		n += some
	}
	if n < len(p) {
		c.room = room
	}
	f.resumeWaiting()
	return n, true
}

// tellRoom tells whoever writes the answer that there is room for more of it.
func (c *Call) tellRoom() {
	if c.room == nil || c.client.waits() > c.f.lowWater() {
		return
	}
	select {
	case c.room <- struct{}{}:
	default: // it knows
	}
	c.room = nil
}
