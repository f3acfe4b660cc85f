package cli

import (
	"fmt"

	"github.com/railhop/railhop/internal/registry"
	"github.com/railhop/railhop/internal/shmabi"
)

// What status --json prints.
type (
	groupStatus struct {
		Group   string        `json:"group"`
		Path    string        `json:"path"`
		Off     bool          `json:"off"` // ranks to come start switched off
		Ranks   []rankStatus  `json:"ranks"`
		Refused []refusedFile `json:"refused"`
	}

	rankStatus struct {
		Name          string            `json:"name"`
		PID           int32             `json:"pid"`
		UID           uint32            `json:"uid"`
		Epoch         string            `json:"epoch"`
		Condition     string            `json:"condition"` // as in the table
		State         string            `json:"state"`     // initializing, ready or stopping
		Life          string            `json:"life"`      // alive, dead or unknown
		Suspected     string            `json:"suspected,omitempty"`
		Off           bool              `json:"off"`
		Sleeping      bool              `json:"sleeping"`
		Beating       bool              `json:"beating"`
		HeartbeatAge  float64           `json:"heartbeat_age_s"` // at least
		SameNamespace bool              `json:"same_pid_namespace"`
		Rails         []string          `json:"rails"`
		SlotSize      uint64            `json:"slot_size"`
		ArenaSize     uint64            `json:"arena_size"`
		Lanes         []laneStatus      `json:"lanes"` // those that are held
		Server        string            `json:"server,omitempty"`
		NICPaths      map[string]string `json:"nic_paths,omitempty"`
		RailRule      string            `json:"rail_rule,omitempty"`
		Counters      map[string]uint64 `json:"counters,omitempty"`
		MayStillLand  []string          `json:"may_still_land,omitempty"`
		StatsError    string            `json:"stats_error,omitempty"`
	}

	laneStatus struct {
		Lane      int        `json:"lane"`
		State     string     `json:"state"` // claiming or ready
		Attached  bool       `json:"arena_attached"`
		Sender    string     `json:"sender,omitempty"`
		Head      uint64     `json:"head"`
		Doorbell  uint64     `json:"doorbell"`
		Completed uint64     `json:"completed"`
		Slots     slotStatus `json:"slots"`
	}

	slotStatus struct {
		Free    int `json:"free"`
		Copying int `json:"copying"`
		Waiting int `json:"waiting"`
		Claimed int `json:"claimed"`
		Done    int `json:"done"`
		Revoked int `json:"revoked"`
		Broken  int `json:"broken"`
	}

	refusedFile struct {
		Name   string `json:"name"`
		Cause  string `json:"cause"`
		Detail string `json:"detail"`
	}

	groupList struct {
		Registry string      `json:"registry"`
		Groups   []groupLine `json:"groups"`
	}

	groupLine struct {
		Group   string `json:"group"`
		Off     bool   `json:"off"`
		Ranks   int    `json:"ranks"`
		Dead    int    `json:"dead"` // of them
		Lanes   int    `json:"lanes"`
		Refused int    `json:"refused"`
		Error   string `json:"error,omitempty"`
	}
)

func statusOf(group string, s *registry.Snapshot) groupStatus {
	g := groupStatus{Group: group, Path: s.Path, Off: s.Off, Ranks: []rankStatus{}, Refused: []refusedFile{}}
	for i := range s.Ranks {
		g.Ranks = append(g.Ranks, rankOf(&s.Ranks[i]))
	}
	for _, f := range s.Refused {
		g.Refused = append(g.Refused, refusedFile{f.Name, f.Cause.String(), f.Detail})
	}
	return g
}

func rankOf(r *registry.Rank) rankStatus {
	out := rankStatus{
		Name: r.Name, PID: r.Owner.PID, UID: r.Owner.UID, Epoch: fmt.Sprintf("%016x", r.Epoch),
		Condition: condition(r), State: stateName(r.State), Life: r.Life.String(), Suspected: r.Suspected,
		Off: r.Off, Sleeping: r.Sleeping, Beating: r.Beating, HeartbeatAge: r.HeartbeatAge.Seconds(), SameNamespace: r.SameNamespace,
		Rails: r.Rails, SlotSize: r.SlotSize, ArenaSize: r.ArenaSize, Lanes: []laneStatus{}, StatsError: r.StatsError,
	}
	for i, l := range r.Lanes {
		if l.State == shmabi.LaneFree {
			continue
		}
		s := laneStatus{
			Lane: i, State: laneStateName(l.State), Attached: l.Attached,
			Head: l.Head, Doorbell: l.Doorbell, Completed: l.Completed, Slots: slotStatus(l.Slots),
		}
		if l.State == shmabi.LaneReady {
			s.Sender = senderName(&l)
		}
		out.Lanes = append(out.Lanes, s)
	}
	if st := r.Stats; st != nil {
		out.Server, out.NICPaths, out.RailRule, out.Counters, out.MayStillLand = st.Server, st.NICPaths, st.RailRule, st.Counters, st.MayStillLand
	}
	return out
}

// condition is what an operator makes of a rank, in a word or two.
func condition(r *registry.Rank) string {
	c := "alive"
	switch {
	case r.Life == registry.Dead:
		return "dead"
	case r.Suspected != "":
		c = "suspected"
	case r.State == shmabi.StateStopping:
		c = "stopping"
	case r.State == shmabi.StateInitializing:
		c = "initializing"
	case r.Life == registry.Unknown:
		c = "unknown"
	}
	if r.Off {
		c += ", off"
	}
	return c
}

func stateName(s uint32) string {
	switch s {
	case shmabi.StateInitializing:
		return "initializing"
	case shmabi.StateReady:
		return "ready"
	case shmabi.StateStopping:
		return "stopping"
	}
	return fmt.Sprintf("state %d", s)
}

func laneStateName(s uint32) string {
	switch s {
	case shmabi.LaneFree:
		return "free"
	case shmabi.LaneClaiming:
		return "claiming"
	case shmabi.LaneReady:
		return "ready"
	}
	return fmt.Sprintf("state %d", s)
}

// senderName is the name of the sender's own entry; epoch 0 means that it has
// given the lane back and the owner has not cleared it yet.
func senderName(l *registry.Lane) string {
	if l.SenderEpoch == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d.%d", l.Sender.UID, l.Sender.PID, l.Sender.StartTicks, l.SenderEpoch)
}
