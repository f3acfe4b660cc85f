package railhop_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/gpufault"
	"github.com/railhop/railhop/internal/nic/nicfault"
	"github.com/railhop/railhop/internal/shm"
	"github.com/railhop/railhop/internal/xfer"
)

// degradation is a way in which a reason comes about.
type degradation struct {
	name  string // if a reason has several
	relay settings
	alone bool   // there is no relay
	size  uint64 // 0 means one slot
	// also are the reasons that cannot but come with it.
	also []xfer.Reason
	// run opens the sender and makes the fault happen twice, at least. It checks
	// what arrives.
	run func(r *rig)
}

var errInjected = errors.New("injected fault")

// degradations has, for each reason, how it comes about.
var degradations = map[xfer.Reason][]degradation{
	xfer.PXNOff:       {{alone: true, run: startWith(options{set: settings{"MC_PXN_ENABLE": "0"}})}},
	xfer.PXNBadConfig: {{alone: true, run: startWith(options{set: settings{"MC_PXN_INFLIGHT_DEPTH": "65"}, lax: true})}},
	xfer.PXNSwitched:  {{name: "running", run: switchedOff}, {name: "before", run: offBefore}},
	xfer.NoGPU:        {{alone: true, run: startWith(options{gpuHook: gpufault.Fail(gpufault.Open, 1, 0, errInjected)})}},
	xfer.NoLocalRail: {{alone: true, run: startWith(options{
		set:     settings{"RAILHOP_SOFT_NICS": "m0=127.0.1.1;m9=127.0.1.10"},
		nicHook: func(c *nicfault.Call) error { return failOf(c.Op == nicfault.Port && c.Device == "m0") },
	})}},
	xfer.RegistryError: {{alone: true, run: foreignGroup}},
	xfer.ShmError:      {{name: "absent", alone: true, run: noRegistry}, {name: "full", alone: true, run: fullRegistry}, {name: "truncated", run: truncated}},
	xfer.ArenaError:    {{alone: true, run: startWith(options{gpuHook: gpufault.Fail(gpufault.Alloc, 1, 0, errInjected)})}},
	xfer.RegisterError: {{alone: true, run: startWith(options{nicHook: nicfault.Nth(nicfault.Register, "m0", 1, nicfault.Fail(errInjected))})}},
	xfer.ExportError:   {{alone: true, run: startWith(options{gpuHook: gpufault.Fail(gpufault.Export, 1, 0, errInjected)})}},

	xfer.NotWrite:       {{run: reads}},
	xfer.SourceNotGPU:   {{run: fromHost}},
	xfer.OtherGPU:       {{run: fromOtherGPU}},
	xfer.ZeroLength:     {{run: nothing}},
	xfer.SameRail:       {{run: sameRail}},
	xfer.NoSegmentName:  {{run: longName}},
	xfer.NoTargetDevice: {{run: noDevice}},
	xfer.NoPeer:         {{alone: true, run: plain(options{})}},
	xfer.NoLane:         {{run: lanesTaken}},
	xfer.RegistryBusy:   {{run: busyRegistry}},
	xfer.ImportError:    {{run: plain(options{gpuHook: gpufault.Fail(gpufault.Import, 1, 0, errInjected)})}},
	xfer.NoTargetFence:  {{run: noFence}},
	xfer.WayNotClosed:   {{also: []xfer.Reason{xfer.Aborted}, run: wayNotClosed}},

	xfer.BadPieces: {{run: plain(options{gpuHook: gpufault.Fail(gpufault.NewEvent, 2, 3, errInjected)})}},
	xfer.NoCredit:  {{size: 20 * small, run: noCredit}},
	xfer.NotClaimed: {{
		relay: settings{"MC_PXN_HEARTBEAT_TIMEOUT_MS": "60000"}, run: notClaimed,
	}},
	xfer.FenceError: {{run: plain(options{gpuHook: gpufault.Fail(gpufault.RecordCaller, 1, 2, errInjected)})}},
	xfer.Capturing:  {{run: capturing}},
	xfer.CopyError:  {{run: copyFails}},
	xfer.PublishError: {
		{name: "copy", run: plain(options{gpuHook: gpufault.Fail(gpufault.Copy, 1, 0, errInjected)})},
		// The first is the proof at the opening of the lane.
		{name: "doorbell", run: plain(options{gpuHook: gpufault.Fail(gpufault.Write64, 2, 2, errInjected)})},
	},
	xfer.CPUDoorbell: {
		{name: "no stream memory operations", run: plain(options{set: settings{"RAILHOP_SOFT_GPUS": "0000:a0:00.0,memops=off"}})},
		{name: "no NVLink", run: plain(options{set: settings{"RAILHOP_SOFT_GPUS": "0000:a0:00.0,peer=off"}})},
		{name: "asked for", run: plain(options{set: settings{"MC_PXN_DOORBELL": "cpu"}})},
	},
	xfer.CopyByCopy: {{run: scattered}},
	xfer.RelayPoolEmpty: {{
		relay: settings{"MC_PXN_INFLIGHT_DEPTH": "1", "MC_MAX_WR": "8192", "MC_MAX_CQE_PER_CTX": "16384"},
		run:   manyBuffers,
	}},
	xfer.BadDescriptor: {{run: hostile(func(b *body) { b.Length-- })}},
	xfer.NoRoute:       {{relay: settings{"MC_PXN_CREDIT_TIMEOUT_MS": "100"}, run: hostile(func(b *body) { b.Session = []byte("127.0.0.1:1") })}},
	xfer.RelaySuspected: {
		// What it had claimed was fenced: woken, it finds its queue pairs gone.
		{name: "stopped", also: []xfer.Reason{xfer.RelayNICError}, run: suspected},
		{name: "killed", run: killed},
	},
	xfer.RelayStopping: {{run: stopping}},
	xfer.SenderDead:    {{alone: true, run: senderDies}},
	xfer.RelayNICError: {{relay: settings{breakable: "1"}, run: nicFails}},
	xfer.GPUFatal:      {{name: "at submission", run: gpuLost}, {name: "in a copy", run: gpuLostInCopy}},
	xfer.DirectImpossible: {{
		alone: true, also: []xfer.Reason{xfer.NoPeer}, run: noWay,
	}},
	xfer.Aborted: {{run: aborted}},
}

func failOf(yes bool) error {
	if yes {
		return errInjected
	}
	return nil
}

// TestReasons makes each degradation happen, twice, in a run of several
// processes: the bytes arrive all the same, the reason is counted and no other,
// and there is one line in the log.
func TestReasons(t *testing.T) {
	target, name := start(t, targetSettings(), t.TempDir())
	for _, why := range xfer.Reasons() {
		if len(degradations[why]) == 0 {
			t.Errorf("%v has no entry in degradations: add a case that makes it happen", why)
		}
		for _, d := range degradations[why] {
			test := why.String()
			if d.name != "" {
				test += "/" + d.name
			}
			t.Run(test, func(t *testing.T) { degrade(t, why, d, target, name) })
		}
	}
}

func degrade(t *testing.T, why xfer.Reason, d degradation, target *child, name string) {
	relay := d.relay
	if relay == nil && !d.alone {
		relay = settings{}
	}
	r := newRig(t, target, name, max(d.size, small), relay)
	defer r.log.end()
	d.run(r)
	if t.Failed() {
		return
	}
	s := r.sender.engine.Stats()
	if n := s.Reasons[why].Ops; n < 2 {
		t.Errorf("%v was counted %d times, want 2 at least; reasons: %v", why, n, s.Reasons)
	}
	for other, f := range s.Reasons {
		if other != why && other.Class() != xfer.ByDesign && !slices.Contains(d.also, other) {
			t.Errorf("%v was counted %d times too", other, f.Ops)
		}
	}
	if n := r.log.count(why); n != 1 {
		t.Errorf("%d lines in the log name the reason, want 1", n)
	}
	balance(t, s)
	// A GPU that is lost frees nothing any more, and says so to us, whose memory it is;
	// and a block that is gone cannot be marked as stopping.
	err := r.sender.close()
	known := why == xfer.GPUFatal && errors.Is(err, gpu.ErrFatal) || why == xfer.ShmError && errors.Is(err, shm.ErrTruncated)
	if err != nil && !known {
		t.Errorf("close: %v", err)
	}
}
