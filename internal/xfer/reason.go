package xfer

import "fmt"

// Reason says why bytes did not take the relay, or took it in a lesser way. The
// list is complete: a degradation without an entry here does not exist. Each
// is counted under its name and logged once.
type Reason uint8

// Class sorts reasons by what an operator should make of them.
type Class uint8

const (
	// ByDesign: the direct way is the right one for this task.
	ByDesign Class = iota
	// Degraded: the relay is not there, or could not be used.
	Degraded
	// Lesser: the relay is used, by slower means.
	Lesser
)

const (
	NoReason Reason = iota

	PXNOff        // MC_PXN_ENABLE is not set
	PXNBadConfig  // an MC_PXN_* value is invalid
	PXNSwitched   // switched off while running
	NoGPU         // no CUDA device, or none known yet
	NoLocalRail   // no active NIC, or too many, or names that do not fit
	RegistryError // the registry directory cannot be opened or written
	ShmError      // /dev/shm is full, read-only or absent
	ArenaError    // the arena cannot be allocated
	RegisterError // the arena cannot be registered with a NIC
	ExportError   // the arena cannot be exported

	NotWrite       // the task is not a write
	SourceNotGPU   // the source is host memory or not wholly registered
	OtherGPU       // the source lies on another GPU
	ZeroLength     // nothing to move
	SameRail       // the target's rail is one of ours
	NoSegmentName  // the target has no name, or one over 256 bytes
	NoTargetDevice // no device serves the target range
	NoPeer         // no live rank of the group owns the target's rail
	NoLane         // the peer's lanes are all taken
	RegistryBusy   // the registry's lock was not to be had in time
	ImportError    // the peer's arena cannot be imported
	NoTargetFence  // the target offers no fence and the relay's death would prove nothing
	WayNotClosed   // an earlier piece by this relay to this target is not closed yet

	BadPieces        // the spans do not make pieces: empty, or overflowing
	NoCredit         // the ring stayed full for the credit timeout
	NotClaimed       // the relay did not claim the piece within the credit timeout
	FenceError       // the fence on the source's stream cannot be recorded
	Capturing        // the caller's stream is being captured
	CopyError        // the copy into the slot failed
	PublishError     // publishing failed after the commit
	CPUDoorbell      // no stream memory operations, or no NVLink: the CPU rings
	CopyByCopy       // no batched copy and no gather kernel
	RelayPoolEmpty   // the relay had no work slices left
	BadDescriptor    // the relay found the descriptor invalid
	NoRoute          // the relay found no route to the target
	RelaySuspected   // the relay stopped beating, or its process died
	RelayStopping    // the relay is shutting down
	SenderDead       // a sender died; its lane was drained and freed
	RelayNICError    // the relay's NIC or queue pair failed
	GPUFatal         // a fatal driver error: PXN is off for the process
	DirectImpossible // direct cannot reach the target either
	Aborted          // the caller's deadline passed, or it gave up

	reasonCount
)

var reasons = [reasonCount]struct {
	name  string
	class Class
}{
	NoReason:         {"none", ByDesign},
	PXNOff:           {"pxn_off", ByDesign},
	PXNBadConfig:     {"pxn_bad_config", Degraded},
	PXNSwitched:      {"pxn_switched_off", Degraded},
	NoGPU:            {"no_gpu", Degraded},
	NoLocalRail:      {"no_local_rail", Degraded},
	RegistryError:    {"registry_error", Degraded},
	ShmError:         {"shm_error", Degraded},
	ArenaError:       {"arena_error", Degraded},
	RegisterError:    {"register_error", Degraded},
	ExportError:      {"export_error", Degraded},
	NotWrite:         {"not_write", ByDesign},
	SourceNotGPU:     {"source_not_gpu", ByDesign},
	OtherGPU:         {"other_gpu", ByDesign},
	ZeroLength:       {"zero_length", ByDesign},
	SameRail:         {"same_rail", ByDesign},
	NoSegmentName:    {"no_segment_name", Degraded},
	NoTargetDevice:   {"no_target_device", Degraded},
	NoPeer:           {"no_peer", Degraded},
	NoLane:           {"no_lane", Degraded},
	RegistryBusy:     {"registry_busy", Degraded},
	ImportError:      {"import_error", Degraded},
	NoTargetFence:    {"no_target_fence", Degraded},
	WayNotClosed:     {"way_not_closed", Degraded},
	BadPieces:        {"bad_pieces", Degraded},
	NoCredit:         {"no_credit", Degraded},
	NotClaimed:       {"not_claimed", Degraded},
	FenceError:       {"fence_error", Degraded},
	Capturing:        {"capturing", Degraded},
	CopyError:        {"copy_error", Degraded},
	PublishError:     {"publish_error", Degraded},
	CPUDoorbell:      {"cpu_doorbell", Lesser},
	CopyByCopy:       {"copy_by_copy", Lesser},
	RelayPoolEmpty:   {"relay_pool_empty", Degraded},
	BadDescriptor:    {"bad_descriptor", Degraded},
	NoRoute:          {"no_route", Degraded},
	RelaySuspected:   {"relay_suspected", Degraded},
	RelayStopping:    {"relay_stopping", Degraded},
	SenderDead:       {"sender_dead", Degraded},
	RelayNICError:    {"relay_nic_error", Degraded},
	GPUFatal:         {"gpu_fatal", Degraded},
	DirectImpossible: {"direct_impossible", Degraded},
	Aborted:          {"aborted", ByDesign},
}

// Reasons returns all reasons but [NoReason], in order.
func Reasons() []Reason {
	all := make([]Reason, 0, reasonCount-1)
	for r := NoReason + 1; r < reasonCount; r++ {
		all = append(all, r)
	}
	return all
}

// ReasonCount is one more than the highest reason: the length of an array that
// is indexed by reasons.
const ReasonCount = int(reasonCount)

func (r Reason) String() string {
	if r >= reasonCount {
		return fmt.Sprintf("reason %d", uint8(r))
	}
	return reasons[r].name
}

// Class says what an operator should make of r.
func (r Reason) Class() Class {
	if r >= reasonCount {
		return Degraded
	}
	return reasons[r].class
}
