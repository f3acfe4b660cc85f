package verbs

import (
	"github.com/railhop/railhop/internal/nic"
)

// Events implements [nic.Device].
func (d *Device) Events() <-chan nic.Event { return d.events }

// send tells of an event. The caller holds mu.
func (d *Device) send(e nic.Event) {
	select {
	case <-d.closed:
		return
	default:
	}
	select {
	case d.events <- e:
	default:
	}
}

func (d *Device) tell(e nic.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.send(e)
}

// watch waits for events until the device is closed.
func (d *Device) watch() {
	f, err := d.p.frames.get()
	if err != nil {
		d.log.Warn("no events", "err", err)
		return
	}
	defer d.p.frames.put(f)
	raw, err := d.async.SyscallConn()
	if err != nil {
		return
	}
	lib := d.p.lib
	for {
		err := raw.Read(func(uintptr) bool {
			return lib.status(f, lib.getAsyncEvent, d.context, addr(&f.event)) == 0
		})
		if err != nil {
			return // closed
		}
		kind, element := f.event.kind, f.event.element
		qpn := uint32(0)
		if kind == eventQPFatal || kind == eventQPReqErr || kind == eventQPAccessErr {
			qpn = at[uint32](element, qpNum) // there until the event is acknowledged
		}
		if kind == eventCQErr {
			d.lostCQ(element)
		}
		f.call(lib.ackAsyncEvent, addr(&f.event))
		d.event(kind, qpn)
	}
}

func (d *Device) event(kind, qpn uint32) {
	d.log.Debug("device event", "kind", kind, "qpn", qpn)
	switch kind {
	case eventQPFatal, eventQPReqErr, eventQPAccessErr:
		d.tell(nic.Event{Type: nic.QPFatal, QPN: qpn})
	case eventDeviceFatal:
		d.mu.Lock()
		d.fatal = true
		d.send(nic.Event{Type: nic.DeviceFatal})
		d.mu.Unlock()
	case eventPortActive:
		d.refresh()
		d.tell(nic.Event{Type: nic.PortUp})
	case eventPortErr:
		d.tell(nic.Event{Type: nic.PortLost})
	case eventLIDChange:
		d.tell(nic.Event{Type: nic.GIDChanged})
	case eventGIDChange:
		d.refresh()
	}
}

// lostCQ marks the completion queue that a card has given up.
func (d *Device) lostCQ(at uintptr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.cqs {
		if c.at == at {
			c.lost.Store(true)
		}
	}
}
