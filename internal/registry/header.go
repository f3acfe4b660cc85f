package registry

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/railhop/railhop/internal/shmabi"
)

// header is what a validated RegistryHeader says: the words that do not change
// once an entry is published.
type header struct {
	owner        shmabi.Identity
	epoch        uint64
	rails        []string
	slotSize     uint64
	arenaSize    uint64
	arenaHandle  [shmabi.HandleBytes]byte
	bootIDHash   uint64
	pidNamespace uint64
}

// Offsets in a RegistryHeader (pxn.md 3.2), for a header that was read by a
// system call.
const (
	offMagic        = 0
	offVersion      = 8
	offHeaderBytes  = 12
	offMappingBytes = 16
	offState        = 24
	offRailBytes    = 28
	offOwner        = 32
	offEpoch        = 48
	offLaneCount    = 64
	offSlots        = 68
	offSlotSize     = 72
	offArenaSize    = 80
	offHandleBytes  = 88
	offRailCount    = 92
	offRail         = 96
	offArenaHandle  = 352
	offBootIDHash   = 424
	offPIDNamespace = 432
	offZero         = 444
)

// checkMagic looks at the first 12 bytes, which are the same in every version.
func checkMagic(b []byte) *Refusal {
	if magic := binary.LittleEndian.Uint64(b[offMagic:]); magic != shmabi.Magic {
		return refuse(WrongMagic, "magic %q, want %q", b[:8], "RAILHOP1")
	}
	if v := binary.LittleEndian.Uint32(b[offVersion:]); v != shmabi.ABIVersion {
		return refuse(WrongVersion, "abi_version %d, this build speaks %d", v, shmabi.ABIVersion)
	}
	return nil
}

// parseHeader checks a copy of a header and takes it apart.
func parseHeader(b []byte) (header, *Refusal) {
	var h header
	if len(b) < shmabi.HeaderBytes {
		return h, refuse(BadHeader, "%d bytes, want %d", len(b), shmabi.HeaderBytes)
	}
	if bad := checkMagic(b); bad != nil {
		return h, bad
	}
	u32 := func(off int) uint32 { return binary.LittleEndian.Uint32(b[off:]) }
	u64 := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	for _, f := range []struct {
		name      string
		got, want uint64
	}{
		{"header_bytes", uint64(u32(offHeaderBytes)), shmabi.HeaderBytes},
		{"mapping_bytes", u64(offMappingBytes), shmabi.ControlBytes},
		{"lane_count", uint64(u32(offLaneCount)), shmabi.Lanes},
		{"slots_per_lane", uint64(u32(offSlots)), shmabi.Slots},
		{"ipc_handle_bytes", uint64(u32(offHandleBytes)), shmabi.HandleBytes},
		{"the last word", uint64(u32(offZero)), 0},
	} {
		if f.got != f.want {
			return h, refuse(BadHeader, "%s is %d, want %d", f.name, f.got, f.want)
		}
	}
	if s := u32(offState); s > shmabi.StateStopping {
		return h, refuse(BadHeader, "state is %d, valid are 0 to %d", s, shmabi.StateStopping)
	}
	h.owner = shmabi.Identity{UID: u32(offOwner), PID: int32(u32(offOwner + 4)), StartTicks: u64(offOwner + 8)}
	h.epoch = u64(offEpoch)
	if h.owner.PID <= 0 || h.epoch == 0 {
		return h, refuse(BadHeader, "owner pid %d, epoch %d: neither may be 0", h.owner.PID, h.epoch)
	}
	h.slotSize, h.arenaSize = u64(offSlotSize), u64(offArenaSize)
	if err := checkSlotSize(h.slotSize); err != nil {
		return h, refuse(BadHeader, "%v", err)
	}
	if want := arenaSize(h.slotSize); h.arenaSize != want {
		return h, refuse(BadHeader, "arena_size is %d, want %d", h.arenaSize, want)
	}
	used, count := u32(offRailBytes), u32(offRailCount)
	if used > shmabi.RailBytes {
		return h, refuse(BadHeader, "rail_bytes is %d, at most %d fit", used, shmabi.RailBytes)
	}
	rails, err := unpackRails(b[offRail:offRail+int(used)], int(count))
	if err != nil {
		return h, refuse(BadHeader, "%v", err)
	}
	h.rails = rails
	copy(h.arenaHandle[:], b[offArenaHandle:])
	h.bootIDHash, h.pidNamespace = u64(offBootIDHash), u64(offPIDNamespace)
	return h, nil
}

func checkSlotSize(n uint64) error {
	if n < shmabi.MinSlotSize || n > shmabi.MaxSlotSize || n&(n-1) != 0 {
		return fmt.Errorf("slot size is %d, valid are powers of two from %d to %d", n, shmabi.MinSlotSize, shmabi.MaxSlotSize)
	}
	return nil
}

func arenaSize(slotSize uint64) uint64 { return shmabi.Lanes * shmabi.Slots * slotSize }

// packRails lays names out as the header wants them.
func packRails(rails []string) ([]byte, error) {
	if len(rails) < 1 || len(rails) > shmabi.MaxRails {
		return nil, fmt.Errorf("registry: %d rails, valid are 1 to %d", len(rails), shmabi.MaxRails)
	}
	var b []byte
	for i, name := range rails {
		if name == "" || strings.IndexByte(name, 0) >= 0 {
			return nil, fmt.Errorf("registry: rail %d: name %q is empty or holds a NUL", i, name)
		}
		for _, other := range rails[:i] {
			if other == name {
				return nil, fmt.Errorf("registry: rail %q is listed twice", name)
			}
		}
		b = append(append(b, name...), 0)
	}
	if len(b) > shmabi.RailBytes {
		return nil, fmt.Errorf("registry: rail names %q take %d bytes, at most %d fit", rails, len(b), shmabi.RailBytes)
	}
	return b, nil
}

// unpackRails is the reverse of packRails, for bytes of a peer.
func unpackRails(b []byte, count int) ([]string, error) {
	if count < 1 || count > shmabi.MaxRails {
		return nil, fmt.Errorf("rail_count is %d, valid are 1 to %d", count, shmabi.MaxRails)
	}
	rails := make([]string, 0, count)
	for len(b) > 0 {
		name, rest, ok := bytes.Cut(b, []byte{0})
		if !ok || len(name) == 0 {
			return nil, fmt.Errorf("rail names: entry %d is empty or has no NUL", len(rails))
		}
		for _, other := range rails {
			if other == string(name) {
				return nil, fmt.Errorf("rail names: %q is listed twice", name)
			}
		}
		rails, b = append(rails, string(name)), rest
	}
	if len(rails) != count {
		return nil, fmt.Errorf("rail names: %d, rail_count is %d", len(rails), count)
	}
	return rails, nil
}
