package railhop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/railhop/railhop/internal/endpoint"
	"github.com/railhop/railhop/internal/handshake"
	"github.com/railhop/railhop/internal/wire"
)

// refuser answers handshakes as Mooncake's engine does, but for what change alters.
type refuser struct {
	handshake.Asker
	desc   wire.SegmentDesc
	change func(reply *wire.HandShake) error
	asked  []string
}

func (r *refuser) Describe(context.Context, string) (*wire.SegmentDesc, error) { return &r.desc, nil }

func (r *refuser) Connect(_ context.Context, server string, h wire.HandShake) (wire.HandShake, error) {
	r.asked = append(r.asked, fmt.Sprintf("%s: %s to %s, %d queue pairs", server, h.LocalNICPath, h.PeerNICPath, len(h.QPNum)))
	no := false
	reply := wire.HandShake{LocalNICPath: h.PeerNICPath, PeerNICPath: h.LocalNICPath, QPNum: []uint32{7, 8}, ReadyAck: &no, ReplyMsg: endpoint.CountMismatch}
	err := r.change(&reply)
	return reply, err
}

// TestFenceMooncake wants every NIC path that a relay may have connected to be asked, and
// nothing but the words of the refusal to be believed.
func TestFenceMooncake(t *testing.T) {
	t.Parallel()
	fresh := wire.SegmentDesc{Name: "t:1", Devices: []wire.Device{{Name: "a", GID: "g"}, {Name: "b", GID: "g"}}}
	known := wire.SegmentDesc{Name: "t:1", Devices: []wire.Device{{Name: "b", GID: "g"}, {Name: "c", GID: "g"}}}
	broken := errors.New("broken")
	for _, tt := range []struct {
		name   string
		change func(h *wire.HandShake) error
		fails  bool
	}{
		{"refused", func(*wire.HandShake) error { return nil }, false},
		{"refused, told as an error", func(*wire.HandShake) error { return &handshake.RejectedError{} }, false},
		{"no answer", func(*wire.HandShake) error { return broken }, true},
		{"accepted", func(h *wire.HandShake) error { h.ReplyMsg = ""; return nil }, true},
		{"refused for another reason", func(h *wire.HandShake) error { h.ReplyMsg = "Local RDMA endpoint unavailable for x"; return nil }, true},
		{"one of the first phase only", func(h *wire.HandShake) error { h.ReadyAck = nil; return nil }, true},
		{"another path", func(h *wire.HandShake) error { h.PeerNICPath = "x@y"; return nil }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var r refuser
			r = refuser{desc: fresh, change: func(h *wire.HandShake) error {
				if len(r.asked) < 3 {
					return nil
				}
				return tt.change(h)
			}}
			d := remoteDialer{&r}
			err := d.fenceMooncake(t.Context(), "t:1", 0xabc, 2, &known)
			if (err != nil) != tt.fails {
				t.Fatalf("got %v, want an error: %v", err, tt.fails)
			}
			var want []string
			for _, dev := range []string{"a", "b", "c"} {
				for rail := range 2 {
					want = append(want, fmt.Sprintf("t:1: relay-0000000000000abc@%d to t:1@%s, 0 queue pairs", rail, dev))
				}
			}
			if tt.fails {
				want = want[:3]
			}
			if !slices.Equal(r.asked, want) {
				t.Errorf("asked %q, want %q", r.asked, want)
			}
		})
	}
	t.Run("no NIC", func(t *testing.T) {
		t.Parallel()
		if err := (remoteDialer{&refuser{}}).fenceMooncake(t.Context(), "t:1", 1, 1, &wire.SegmentDesc{}); err == nil {
			t.Error("a target without NICs counts as fenced")
		}
	})
}
