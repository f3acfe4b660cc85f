package railhop

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/wire"
)

// relayPath is the own NIC path of a relay's queue pairs for relayed traffic. It is not
// that of the process's own transfers, since Mooncake's engine keeps one connection for
// each path; and whoever knows the relay's registry entry can tell it.
func relayPath(epoch uint64, rail int) string {
	return wire.NICPath(fmt.Sprintf("relay-%016x", epoch), strconv.Itoa(rail))
}

// fence asks a target to close a relay's queue pairs. A target that refuses the
// connection has no engine any more: it closed its queue pairs before it closed
// its port.
func (d remoteDialer) fence(ctx context.Context, session string, epoch uint64) error {
	var nonce [8]byte
	rand.Read(nonce[:])
	_, err := d.Fence(ctx, session, wire.FenceRequest{Epoch: epoch, Nonce: hex.EncodeToString(nonce[:])})
	if handshake.Refused(err) {
		return nil
	}
	return err
}

// fenceMooncake makes Mooncake's engine close a relay's queue pairs: a handshake in the
// relay's NIC path, which it must refuse since it offers no queue pairs, moves those
// that it replaces to ERR before it is answered (mooncake-wire.md 4.6). It is confirmed by
// the words of the refusal, which is the step after that one. Versions up to 0.3.11, which
// do the same, do not say so.
//
// NICs that the relay has not used are asked too: which it has cannot be told from here.
func (d remoteDialer) fenceMooncake(ctx context.Context, session string, epoch uint64, rails int, known *wire.SegmentDesc) error {
	fresh, err := d.Describe(ctx, session)
	if err != nil {
		return err
	}
	asked := make(map[string]bool)
	for _, desc := range []*wire.SegmentDesc{fresh, known} {
		for _, dev := range desc.Devices {
			path := wire.NICPath(desc.ServerName(), dev.Name)
			if asked[path] {
				continue
			}
			asked[path] = true
			for i := range rails {
				if err := d.refuse(ctx, desc.ServerName(), relayPath(epoch, i), path, dev.GID); err != nil {
					return err
				}
			}
		}
	}
	if len(asked) == 0 {
		return errors.New("railhop: fence: the target's descriptor lists no NIC")
	}
	return nil
}

// refuse has one of the target's NICs replace what is connected to a relay's path.
func (d remoteDialer) refuse(ctx context.Context, server, from, to, gid string) error {
	no := false
	h := wire.HandShake{LocalNICPath: from, PeerNICPath: to, LocalGID: gid, QPNum: []uint32{}, ReadyAck: &no}
	reply, err := d.Connect(ctx, server, h)
	if rejected := (*handshake.RejectedError)(nil); err != nil && !errors.As(err, &rejected) {
		return err
	}
	if reply.ReplyMsg != endpoint.CountMismatch || reply.ReadyAck == nil || reply.LocalNICPath != to || reply.PeerNICPath != from {
		return fmt.Errorf("railhop: fence: a handshake without queue pairs from %s to %s is answered with %q, want %q", from, to, reply.ReplyMsg, endpoint.CountMismatch)
	}
	return nil
}

// fenceRelay closes a relay's queue pairs at a target. It may block.
func (r *rank) fenceRelay(ctx context.Context, t *target, session string, epoch uint64) error {
	desc := t.remote.Desc()
	if desc.FenceVersion >= 1 {
		return t.engine.dialer.fence(ctx, session, epoch)
	}
	rails, ok := r.relays.Load(epoch)
	if !ok {
		return fmt.Errorf("railhop: fence: relay %016x is not known", epoch)
	}
	return t.engine.dialer.fenceMooncake(ctx, session, epoch, rails.(int), desc.SegmentDesc)
}

// fencedByHandshake reports whether a target may be one that handshakes fence.
func fencedByHandshake(d *wire.SegmentDesc) bool {
	return d.FenceVersion == 0 && d.Protocol == wire.ProtocolRDMA && !slices.ContainsFunc(d.Devices, func(dev wire.Device) bool { return dev.GID == "" })
}
