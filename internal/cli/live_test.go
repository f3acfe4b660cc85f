package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"
)

// A group of two ranks, one of which writes through the other, as status sees it
// from outside and as pxn off changes it.
func TestLiveRelay(t *testing.T) {
	noSettings(t)
	root := t.TempDir()
	rank := func(n, nic, gpu string) []string {
		return []string{
			"RAILHOP_SOFT_NICS=" + nic, "RAILHOP_SOFT_GPUS=0000:a" + gpu + ":00.0",
			"MC_PXN_ENABLE=1", "MC_PXN_GROUP_ID=" + n, "MC_PXN_SLOT_SIZE=256KiB",
		}
	}
	_, segment, _ := startTargetIn(t, []string{"RAILHOP_SOFT_NICS=m1=127.0.2.2"}, "--use_vram")
	startTargetIn(t, rank("live", "m1=127.0.1.2", "1"), "--use_vram", "--registry", root)

	sender := exec.Command(os.Args[0], "bench", "--soft", "--use_vram", "--registry", root, "--segment_id", segment, "--operation", "write",
		"--buffer_size", "1M", "--block_size", "256K", "--batch_size", "4", "--threads", "2", "--duration", "60", "--log-level", "error")
	sender.Env = append(os.Environ(), rank("live", "m0=127.0.1.1", "0")...)
	said := new(syncedText)
	sender.Stdout, sender.Stderr = said, said
	if err := sender.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sender.Process.Kill()
		sender.Wait()
	})

	// look returns what status sees once ok says that it is there.
	// A rank that is not there is zero.
	look := func(what string, ok func(relay, sender rankStatus) bool) {
		t.Helper()
		var out, errOut string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			var status int
			if status, out, errOut = runMain("status", "live", "--registry", root, "--json", "--no-wait"); status != 0 {
				continue
			}
			var g groupStatus
			if err := json.Unmarshal([]byte(out), &g); err != nil {
				t.Fatal(err)
			}
			var relay, sender rankStatus
			for _, r := range g.Ranks {
				if r.Rails[0] == "m1" {
					relay = r
				} else {
					sender = r
				}
			}
			if ok(relay, sender) {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Fatalf("%s: not within 20 s; status says %s%s, the sender %s", what, out, errOut, said)
	}
	look("a lane in use", func(relay, sender rankStatus) bool {
		if sender.Name == "" || len(relay.Lanes) != 1 {
			return false
		}
		l := relay.Lanes[0]
		slots := l.Slots
		if l.Sender == sender.Name && slots.Broken == 0 && slots.Free+slots.Copying+slots.Waiting+slots.Claimed+slots.Done+slots.Revoked != 18 {
			t.Errorf("slots %+v do not add up to 18", slots)
		}
		return l.Sender == sender.Name && l.Attached && l.Completed > 20
	})
	look("counters in the stats files", func(relay, sender rankStatus) bool {
		return sender.Counters["relayed.bytes"] > 0 && relay.Counters["served.bytes"] > 0 && sender.RailRule == "name" &&
			sender.NICPaths["m0"] == sender.Server+"@m0"
	})
	if status, out, errOut := runMain("pxn", "off", "live", "--registry", root); status != 0 {
		t.Fatalf("pxn off: exit status %d: %s%s", status, out, errOut)
	}
	look("no lane, and why", func(relay, sender rankStatus) bool {
		return relay.Name != "" && len(relay.Lanes) == 0 && relay.Off && sender.Off && sender.Counters["reason.pxn_switched_off.ops"] > 0 &&
			sender.Counters["direct_cross_rail.bytes"] > 0
	})
	if status, out, errOut := runMain("pxn", "on", "live", "--registry", root); status != 0 {
		t.Fatalf("pxn on: exit status %d: %s%s", status, out, errOut)
	}
	look("a lane again", func(relay, sender rankStatus) bool {
		return len(relay.Lanes) == 1 && relay.Lanes[0].Sender == sender.Name && relay.Lanes[0].Completed > 20
	})
	sender.Process.Kill()
	look("a dead sender, and its lane freed", func(relay, sender rankStatus) bool {
		return relay.Counters["reason.sender_dead.ops"] > 0 && len(relay.Lanes) == 0 && (sender.Name == "" || sender.Condition == "dead")
	})
}
