// Package config turns the environment into one typed value, once.
//
// One table (table.go) says of each variable its name, type, default, range and
// meaning. Parsing, warnings and docs/configuration.md all come from it.
//
//	environment --Load--> Env (a plain value) + one Warning for each value that
//	                      was not taken as it was given
//
// A bad value never stops the engine and never becomes zero: the default takes
// its place, and for MC_PXN_* the relay stays off. The package also reads the
// device argument that callers pass when they open an engine (device.go).
//
// It opens no file and knows no hardware: whether a device exists, or a path can
// be read, is found out by those who use the value. [FromEnviron] is the only
// reader of the process's environment. There are no goroutines, and an [Env] is
// never changed after [Load] has returned it.
package config

import (
	"log/slog"
	"strings"
	"time"
)

// Env is what the environment asked for, with defaults filled in. Treat it, its
// maps and its slices as read-only.
type Env struct {
	Names     Names
	Metadata  Metadata
	Transport Transport
	RDMA      RDMA
	PXN       PXN
	TCP       TCP
	Log       Log
	Providers Providers

	// Set lists the variables that were set and taken, in the order of the
	// table: what an operator asked for, without the defaults.
	Set []Setting
}

// Setting is a variable whose value was taken.
type Setting struct {
	Name  string // the variable's own name
	From  string // the name that it was found under: Name, or one of its other names
	Value string // as it was given; passwords are hidden
}

// Names is about names, ports and the handshake daemon.
type Names struct {
	HandshakePort  int // assumed where a name has no port
	MinRPCPort     int // the daemon draws its port from here
	MaxRPCPort     int // to here, inclusive
	IPv6           bool
	TCPBindAddress string // advertised host with a metadata server; "" means look for one
	LegacyRPCPort  bool   // with a metadata server: take host and port from the local name
	RDMABindAddr   string // host published as rdma_server_name; "" means none
	Backlog        int
	ConnectTimeout time.Duration
	MaxFrame       int // bytes
}

// Metadata is about metadata servers and the cache of descriptors.
type Metadata struct {
	ClusterID       string // between "mooncake/" and the key; "" means none
	RedisUsername   string
	RedisPassword   Secret
	RedisDB         int
	NoCache         bool
	RefreshInterval time.Duration // 0 means never
}

// Transport is about the choice of transport and about topology.
type Transport struct {
	ForceTCP           bool
	ForceHCA           bool
	TopologyFile       string   // "" means discover
	Filters            []Device // devices allowed; empty means all
	RoundRobin         bool
	DestDeviceAffinity bool
	HCAPeerAffinity    bool
	NICPeerAffinity    map[string][]string // local device to peer devices
}

// RDMA is about NICs, queue pairs and slices.
type RDMA struct {
	Port              int
	GIDIndex          int    // -1 means choose
	GIDIndexFrom      string // the variable that decided GIDIndex; "" if none did
	AutoGIDMaxRetries int
	PKeyIndex         int
	MTU               int
	TrafficClass      int // -1 means leave it alone
	ServiceLevel      int // -1 means leave it alone
	QPsPerEndpoint    int
	MaxWR             int
	MaxSGE            int
	MaxInline         int // bytes
	CQs               int
	CompChannels      int
	MaxCQE            int
	MaxEndpoints      int
	EndpointStore     string // "SIEVE" or "FIFO"
	Workers           int
	SliceSize         int           // bytes
	FragmentLimit     int           // bytes; a rest of up to SliceSize + FragmentLimit stays one slice
	RetryCount        int           // attempts for each slice
	SliceTimeout      time.Duration // 0 means off
	RailPause         time.Duration
	ConnPause         time.Duration // 0 means off
	MaxMRSize         int           // bytes
	ParallelRegMR     int           // 1 always, 0 never, -1 choose
	RelaxedOrdering   int           // 0 off, 1 if there, 2 demand
	GPUMemory         GPUMemory
}

// GPUMemory is how NICs are told of GPU memory: by WITH_NVIDIA_PEERMEM.
type GPUMemory uint8

const (
	GPUMemoryEither  GPUMemory = iota // as a dma-buf where that works, else by nvidia-peermem
	GPUMemoryPeermem                  // 1
	GPUMemoryDMABuf                   // 0
)

// PXN is about the relay.
type PXN struct {
	Enable bool
	// Off says why the relay stays off although it may have been asked for: it
	// names the variable, its value and what is valid. "" means that nothing
	// stands in the way.
	Off string

	GroupID          string
	RailMap          map[string]string // device name to canonical rail; nil means none given
	Depth            int               // pieces a relay forwards at once
	CreditTimeout    time.Duration
	HeartbeatTimeout time.Duration
	SlotSize         int    // bytes
	GatherSMs        int    // blocks of the gather kernel; [AllSMs] means as many as there are
	Doorbell         string // "auto", "stream", "kernel" or "cpu"
	Strict           bool
	Flush            bool
}

// On reports whether the relay was asked for and its settings are sound.
func (p PXN) On() bool { return p.Enable && p.Off == "" }

// Beat is how often a rank says that it is alive: every third of the heartbeat
// timeout, at least once a second.
func (p PXN) Beat() time.Duration { return min(p.HeartbeatTimeout/3, time.Second) }

// TCP is about the TCP transport.
type TCP struct {
	Pool             bool
	LanesPerPeer     int
	MaxQueued        int
	MaxPending       int
	AdmissionTimeout time.Duration
	SliceSize        int // bytes
	Proto            int // 1 forces the old protocol; 0 means the newest that the peer speaks
	StatusTimeout    time.Duration
}

// LevelTrace lies below slog's own levels.
const LevelTrace = slog.LevelDebug - 4

// Log is about logging, metrics and the deadline of blocking calls.
type Log struct {
	Level           slog.Level
	Dir             string // "" means standard error
	Metrics         bool
	MetricsInterval time.Duration
	TransferTimeout time.Duration
}

// Providers says which hardware is used, real or played.
type Providers struct {
	Auto     bool // whatever real hardware is there
	Soft     bool // the software NIC and GPU
	CUDA     bool
	Verbs    bool
	SoftNICs string // in softnic's text form
	SoftGPUs string // in softgpu's text form
}

// String lists what was set, passwords hidden.
func (e Env) String() string {
	if len(e.Set) == 0 {
		return "all defaults"
	}
	var b strings.Builder
	for i, s := range e.Set {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(s.From + "=" + quote(s.Value))
	}
	return b.String()
}
