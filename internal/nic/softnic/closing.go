package softnic

import (
	"errors"
	"time"
)

const (
	closeRetryMin = 2 * time.Millisecond
	closeRetryMax = time.Second
)

// closeRemote asks the peer's device to close its end of a queue pair's
// connection and returns once that is so: it has said so, or is gone. It is gone if
// nothing listens in its place, since a process's listener ends after its memory, and a
// device's after its readers; or if something else does. A peer that does
// not answer may be stopped and go on later, so it is waited for until the
// device here is closed.
func (d *Device) closeRemote(peer end, qpn uint32) error {
	h := hello{
		kind: kindClose, src: end{d.gid, d.lid, qpn}, dstQPN: peer.qpn,
		name: d.cfg.Name, rail: d.cfg.Rail,
	}
	for pause := closeRetryMin; ; pause = min(2*pause, closeRetryMax) {
		conn, rep, err := ask(d.ctx, peer, &h)
		if err == nil {
			conn.Close()
			if rep.verdict == verdictOK {
				return nil
			}
		}
		if errors.Is(err, errGone) || errors.Is(err, errForeign) {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-d.ctx.Done():
			return errors.Join(err, d.ctx.Err())
		}
	}
}
