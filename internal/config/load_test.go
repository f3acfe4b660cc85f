package config

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// vars is an environment to look things up in.
type vars map[string]string

func (v vars) lookup(name string) (string, bool) {
	value, ok := v[name]
	return value, ok
}

// load loads v, on top of nothing, and returns the warnings as lines.
func load(v vars) (Env, []string) {
	env, warnings := Load(v.lookup)
	var lines []string
	for _, w := range warnings {
		lines = append(lines, w.String())
	}
	return env, lines
}

func TestDefaults(t *testing.T) {
	env, warnings := load(nil)
	if len(warnings) != 0 {
		t.Errorf("an empty environment warns: %q", warnings)
	}
	want := Env{
		Names: Names{HandshakePort: 12001, MinRPCPort: 15000, MaxRPCPort: 17000, Backlog: 128, ConnectTimeout: 5 * time.Second, MaxFrame: 1048576},
		RDMA: RDMA{Port: 1, GIDIndex: -1, AutoGIDMaxRetries: 2, MTU: 4096, TrafficClass: -1, ServiceLevel: -1, QPsPerEndpoint: 2,
			MaxWR: 256, MaxSGE: 4, MaxInline: 64, CQs: 1, CompChannels: 1, MaxCQE: 4096, MaxEndpoints: 65536, EndpointStore: "SIEVE",
			Workers: 2, SliceSize: 65536, FragmentLimit: 16384, RetryCount: 9, RailPause: 30 * time.Second, MaxMRSize: 1 << 40,
			ParallelRegMR: -1, RelaxedOrdering: 1},
		PXN: PXN{Depth: 4, CreditTimeout: time.Second, HeartbeatTimeout: 3 * time.Second, SlotSize: 8 << 20, GatherSMs: 4, Doorbell: "auto"},
		TCP: TCP{LanesPerPeer: 4, MaxQueued: 1024, MaxPending: 1024, AdmissionTimeout: time.Second, SliceSize: 65536,
			StatusTimeout: 30 * time.Second},
		Log:       Log{Level: slog.LevelInfo, MetricsInterval: 5 * time.Second, TransferTimeout: 30 * time.Second},
		Providers: Providers{Auto: true},
	}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, Default()); diff != "" {
		t.Errorf("Default (-want +got):\n%s", diff)
	}
}

// Whoever writes a default out must get what whoever leaves it out gets.
func TestDefaultsAreValid(t *testing.T) {
	v := vars{}
	for _, s := range table() {
		for _, row := range s.vars {
			if row.def != "" {
				v[row.name] = row.def
			}
		}
	}
	env, warnings := load(v)
	if len(warnings) != 0 {
		t.Errorf("defaults written out warn: %q", warnings)
	}
	if len(env.Set) != len(v) {
		t.Errorf("%d variables were set, %d taken", len(v), len(env.Set))
	}
	env.Set, env.RDMA.GIDIndexFrom = nil, ""
	if diff := cmp.Diff(Default(), env); diff != "" {
		t.Errorf("defaults written out change something (-want +got):\n%s", diff)
	}
}

func TestTableIsSound(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range knownNames() {
		if seen[name] {
			t.Errorf("%s stands in the table twice", name)
		}
		seen[name] = true
	}
	for _, s := range table() {
		for _, v := range s.vars {
			if v.valid == "" || v.meaning == "" || v.kind == "" || strings.Contains(v.meaning, "\n") {
				t.Errorf("%s: want a kind, what is valid, and a meaning of one line", v.name)
			}
		}
	}
}

// TestValues sets one variable and looks at what became of it. The wanted value
// nil means the default.
func TestValues(t *testing.T) {
	const dflt = "default"
	sliceSize := func(e Env) any { return e.RDMA.SliceSize }
	maxWR := func(e Env) any { return e.RDMA.MaxWR }
	gid := func(e Env) any { return e.RDMA.GIDIndex }
	workers := func(e Env) any { return e.RDMA.Workers }
	slot := func(e Env) any { return e.PXN.SlotSize }
	level := func(e Env) any { return e.Log.Level }
	filters := func(e Env) any { return e.Transport.Filters }
	providers := func(e Env) any { return e.Providers }
	affinity := func(e Env) any { return e.Transport.NICPeerAffinity }
	roundRobin := func(e Env) any { return e.Transport.RoundRobin }
	sms := func(e Env) any { return e.PXN.GatherSMs }
	password := func(e Env) any { return e.Metadata.RedisPassword.Reveal() }

	for _, tc := range []struct {
		name, value string
		of          func(Env) any
		want        any
		warning     string // "" means none
	}{
		// cases.md D07
		{"MC_MAX_WR", "abc", maxWR, dflt, `MC_MAX_WR="abc" is not valid: want an integer from 1 to 65535; the default 256 is used`},
		{"MC_SLICE_SIZE", "-1", sliceSize, dflt, `MC_SLICE_SIZE="-1" is not valid: want an integer from 1 to 2147483647; the default 65536 is used`},
		{"MC_SLICE_SIZE", "99999999999999999999", sliceSize, dflt, `MC_SLICE_SIZE="99999999999999999999" is not valid: want an integer from 1 to 2147483647; the default 65536 is used`},
		{"MC_GID_INDEX", "abc", gid, dflt, `MC_GID_INDEX="abc" is not valid: want an integer from 0 to 255, or -1; the default -1 is used`},
		{"MC_WORKERS_PER_CTX", "64", workers, 8, `MC_WORKERS_PER_CTX="64" is not valid: want an integer from 1 to 8; 8 is used`},
		{"MC_SLICE_SIZE", " 65536 ", sliceSize, 65536, ""},

		{"MC_MAX_WR", "", maxWR, dflt, ""},
		{"MC_MAX_WR", "  ", maxWR, dflt, ""},
		{"MC_MAX_WR", "1", maxWR, 1, ""},
		{"MC_MAX_WR", "65535", maxWR, 65535, ""},
		{"MC_MAX_WR", "65536", maxWR, dflt, `MC_MAX_WR="65536" is not valid: want an integer from 1 to 65535; the default 256 is used`},
		{"MC_MAX_WR", "0", maxWR, dflt, `MC_MAX_WR="0" is not valid: want an integer from 1 to 65535; the default 256 is used`},
		{"MC_MAX_WR", "512KiB", maxWR, dflt, `MC_MAX_WR="512KiB" is not valid: want an integer from 1 to 65535; the default 256 is used`},
		{"MC_MAX_WR", "0x10", maxWR, dflt, `MC_MAX_WR="0x10" is not valid: want an integer from 1 to 65535; the default 256 is used`},
		{"MC_WORKERS_PER_CTX", "0", workers, 1, `MC_WORKERS_PER_CTX="0" is not valid: want an integer from 1 to 8; 1 is used`},
		{"MC_WORKERS_PER_CTX", "99999999999999999999", workers, 8, `MC_WORKERS_PER_CTX="99999999999999999999" is not valid: want an integer from 1 to 8; 8 is used`},
		{"MC_WORKERS_PER_CTX", "many", workers, dflt, `MC_WORKERS_PER_CTX="many" is not valid: want an integer from 1 to 8; the default 2 is used`},
		{"MC_GID_INDEX", "-1", gid, -1, ""},
		{"MC_GID_INDEX", "0", gid, 0, ""},
		{"MC_MTU", "1024", func(e Env) any { return e.RDMA.MTU }, 1024, ""},
		{"MC_MTU", "1500", func(e Env) any { return e.RDMA.MTU }, dflt, `MC_MTU="1500" is not valid: want 512, 1024, 2048 or 4096; the default 4096 is used`},
		{"MC_SLICE_TIMEOUT", "7", func(e Env) any { return e.RDMA.SliceTimeout }, 7 * time.Second, ""},
		{"MC_SLICE_TIMEOUT", "-1", func(e Env) any { return e.RDMA.SliceTimeout }, time.Duration(0), ""},
		{"MC_SLICE_TIMEOUT", "0", func(e Env) any { return e.RDMA.SliceTimeout }, dflt, `MC_SLICE_TIMEOUT="0" is not valid: want an integer from 1 to 65535, or -1; the default -1 is used`},
		{"MC_CONN_PAUSE_TTL_MS", "250", func(e Env) any { return e.RDMA.ConnPause }, 250 * time.Millisecond, ""},
		{"MC_TRANSFER_TIMEOUT", "1", func(e Env) any { return e.Log.TransferTimeout }, 5 * time.Second, `MC_TRANSFER_TIMEOUT="1" is not valid: want an integer from 5 to 2147483647; 5 is used`},
		{"MC_TRANSFER_TIMEOUT", "60", func(e Env) any { return e.Log.TransferTimeout }, time.Minute, ""},
		{"MC_TCP_PROTO", "1", func(e Env) any { return e.TCP.Proto }, 1, ""},
		{"MC_TCP_PROTO", "2", func(e Env) any { return e.TCP.Proto }, dflt, `MC_TCP_PROTO="2" is not valid: want 1; it is ignored`},
		{"MC_TCP_MAX_CONNECTIONS_PER_PEER", "2", func(e Env) any { return e.TCP.LanesPerPeer }, 2, ""},
		{"MC_TCP_MAX_CONNECTIONS_PER_PEER", "17", func(e Env) any { return e.TCP.LanesPerPeer }, dflt, `MC_TCP_MAX_CONNECTIONS_PER_PEER="17" is not valid: want an integer from 1 to 16; the default 4 is used`},

		{"MC_PATH_ROUNDROBIN", "TRUE", roundRobin, true, ""},
		{"MC_PATH_ROUNDROBIN", "on", roundRobin, true, ""},
		{"MC_PATH_ROUNDROBIN", "no", roundRobin, false, ""},
		{"MC_PATH_ROUNDROBIN", "2", roundRobin, dflt, `MC_PATH_ROUNDROBIN="2" is not valid: want 1, true, yes or on; 0, false, no or off; the default 0 is used`},
		{"WITH_NVIDIA_PEERMEM", "0", func(e Env) any { return e.RDMA.GPUMemory }, GPUMemoryDMABuf, ""},
		{"WITH_NVIDIA_PEERMEM", "1", func(e Env) any { return e.RDMA.GPUMemory }, GPUMemoryPeermem, ""},
		{"MC_ENDPOINT_STORE_TYPE", "fifo", func(e Env) any { return e.RDMA.EndpointStore }, "FIFO", ""},
		{"MC_LOG_LEVEL", "trace", level, LevelTrace, ""},
		{"MC_LOG_LEVEL", "WARNING", level, slog.LevelWarn, ""},
		{"MC_LOG_LEVEL", "DEBUG", level, dflt, `MC_LOG_LEVEL="DEBUG" is not valid: want TRACE, INFO, WARNING or ERROR; the default INFO is used`},

		// presence
		{"MC_FORCE_TCP", "1", func(e Env) any { return e.Transport.ForceTCP }, true, ""},
		{"MC_FORCE_TCP", "whatever", func(e Env) any { return e.Transport.ForceTCP }, true, ""},
		{"MC_FORCE_TCP", "0", func(e Env) any { return e.Transport.ForceTCP }, true, `MC_FORCE_TCP="0"; it is on, since any value switches it on: unset it to switch it off`},
		{"MC_FORCE_TCP", "", func(e Env) any { return e.Transport.ForceTCP }, true, `MC_FORCE_TCP: it is on, since any value switches it on: unset it to switch it off`},
		{"MC_USE_IPV6", "Off", func(e Env) any { return e.Names.IPv6 }, true, `MC_USE_IPV6="Off"; it is on, since any value switches it on: unset it to switch it off`},

		// cases.md D06
		{"MC_TE_FILTERS", " mlx5_1 , mlx5_bond_0\t", filters, []Device{{Name: "mlx5_1"}, {Name: "mlx5_bond_0"}}, ""},
		{"MC_TE_FILTERS", "mlx5_1,,mlx5_1,", filters, []Device{{Name: "mlx5_1"}}, ""},
		{"MC_TE_FILTERS", "mlx5_0:1", filters, []Device{{"mlx5_0", 1}}, ""},
		{"MC_TE_FILTERS", "^mlx5_0", filters, dflt, `MC_TE_FILTERS="^mlx5_0" is not valid: want device names with commas between them, such as mlx5_0,mlx5_1; it is ignored`},
		{"MC_TE_FILTERS", ",", filters, dflt, `MC_TE_FILTERS="," is not valid: want device names with commas between them, such as mlx5_0,mlx5_1; it is ignored`},

		{"MC_NIC_PEER_AFFINITY", "a=x, y;b=z;", affinity, map[string][]string{"a": {"x", "y"}, "b": {"z"}}, ""},
		{"MC_NIC_PEER_AFFINITY", "a=x;a=y", affinity, dflt, `MC_NIC_PEER_AFFINITY="a=x;a=y" is not valid: want local=peer[,peer] with semicolons between them, such as mlx5_0=mlx5_0,mlx5_1;mlx5_1=mlx5_2; it is ignored`},
		{"MC_NIC_PEER_AFFINITY", "a", affinity, dflt, `MC_NIC_PEER_AFFINITY="a" is not valid: want local=peer[,peer] with semicolons between them, such as mlx5_0=mlx5_0,mlx5_1;mlx5_1=mlx5_2; it is ignored`},
		{"MC_NIC_PEER_AFFINITY", "a:1=x:1,y:2;b:2=z", affinity, map[string][]string{"a": {"x", "y:2"}, "b:2": {"z"}}, ""},
		{"MC_NIC_PEER_AFFINITY", "a=x:0", affinity, dflt, `MC_NIC_PEER_AFFINITY="a=x:0" is not valid: want local=peer[,peer] with semicolons between them, such as mlx5_0=mlx5_0,mlx5_1;mlx5_1=mlx5_2; it is ignored`},

		{"MC_RDMA_BIND_ADDRESS", "a@b", func(e Env) any { return e.Names.RDMABindAddr }, dflt, `MC_RDMA_BIND_ADDRESS="a@b" is not valid: want a host name or an address, without blanks, "/" and "@"; it is ignored`},
		{"MC_LOG_DIR", "/tmp/\x01", func(e Env) any { return e.Log.Dir }, dflt, `MC_LOG_DIR="/tmp/\x01" is not valid: want UTF-8 without control characters; it is ignored`},
		{"MC_REDIS_PASSWORD", " s3cret ", password, " s3cret ", ""},

		{"RAILHOP_PROVIDERS", "soft", providers, Providers{Soft: true}, ""},
		{"RAILHOP_PROVIDERS", " CUDA, verbs", providers, Providers{CUDA: true, Verbs: true}, ""},
		{"RAILHOP_PROVIDERS", "auto,soft", providers, dflt, `RAILHOP_PROVIDERS="auto,soft" is not valid: want auto, or a comma list of soft, cuda and verbs; the default auto is used`},
		{"RAILHOP_PROVIDERS", "fake", providers, dflt, `RAILHOP_PROVIDERS="fake" is not valid: want auto, or a comma list of soft, cuda and verbs; the default auto is used`},

		{"MC_PXN_SLOT_SIZE", "262144", slot, 256 << 10, ""},
		{"MC_PXN_SLOT_SIZE", "256K", slot, 256 << 10, ""},
		{"MC_PXN_SLOT_SIZE", "1mib", slot, 1 << 20, ""},
		{"MC_PXN_SLOT_SIZE", "8 MiB", slot, 8 << 20, ""},
		{"MC_PXN_SLOT_SIZE", "3MiB", slot, dflt, `MC_PXN_SLOT_SIZE="3MiB" is not valid: want a power of two from 256KiB to 8MiB, in bytes or with K, KiB, M or MiB; the PXN relay stays off`},
		{"MC_PXN_GATHER_SMS", "all", sms, AllSMs, ""},
		{"MC_PXN_GATHER_SMS", "0", sms, dflt, `MC_PXN_GATHER_SMS="0" is not valid: want an integer from 1, or all; the PXN relay stays off`},

		{"MC_USE_TENT", "1", maxWR, dflt, `MC_USE_TENT="1"; it has no effect: the classic engine is what railhop speaks`},
	} {
		t.Run(tc.name+"="+tc.value, func(t *testing.T) {
			env, warnings := load(vars{tc.name: tc.value})
			want := tc.want
			if want == dflt {
				want = tc.of(Default())
			}
			if got := tc.of(env); !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			var wantWarnings []string
			if tc.warning != "" {
				wantWarnings = []string{tc.warning}
			}
			if diff := cmp.Diff(wantWarnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRelations(t *testing.T) {
	ports := func(e Env) any { return [2]int{e.Names.MinRPCPort, e.Names.MaxRPCPort} }
	standard := [2]int{15000, 17000}
	fragment := func(e Env) any { return e.RDMA.FragmentLimit }
	gid := func(e Env) any { return fmt.Sprint(e.RDMA.GIDIndex, " by ", e.RDMA.GIDIndexFrom) }
	affinities := func(e Env) any { return [2]bool{e.Transport.DestDeviceAffinity, e.Transport.HCAPeerAffinity} }
	for _, tc := range []struct {
		name     string
		vars     vars
		of       func(Env) any
		want     any
		warnings int
	}{
		{"both ports", vars{"MC_MIN_RPC_PORT": "21000", "MC_MAX_RPC_PORT": "21100"}, ports, [2]int{21000, 21100}, 0},
		{"one port", vars{"MC_MAX_RPC_PORT": "15000"}, ports, [2]int{15000, 15000}, 0},
		{"above the ephemeral ports", vars{"MC_MIN_RPC_PORT": "61000", "MC_MAX_RPC_PORT": "65535"}, ports, [2]int{61000, 65535}, 0},
		{"misspelt names", vars{"MC_MIN_PRC_PORT": "21000", "MC_MAX_PRC_PORT": "21100"}, ports, [2]int{21000, 21100}, 0},
		{"the right name wins", vars{"MC_MIN_PRC_PORT": "80", "MC_MIN_RPC_PORT": "16000"}, ports, [2]int{16000, 17000}, 0},
		{"an empty name does not win", vars{"MC_MIN_PRC_PORT": "16000", "MC_MIN_RPC_PORT": ""}, ports, [2]int{16000, 17000}, 0},
		{"crossed", vars{"MC_MIN_RPC_PORT": "22000", "MC_MAX_RPC_PORT": "21000"}, ports, standard, 1},
		{"only the lower, above the default upper", vars{"MC_MIN_RPC_PORT": "18000"}, ports, standard, 1},
		{"one bad end takes both back", vars{"MC_MIN_RPC_PORT": "16000", "MC_MAX_RPC_PORT": "40000"}, ports, standard, 1},
		{"two bad ends", vars{"MC_MIN_RPC_PORT": "80", "MC_MAX_RPC_PORT": "x"}, ports, standard, 2},
		{"around the ephemeral ports", vars{"MC_MIN_RPC_PORT": "30000", "MC_MAX_RPC_PORT": "62000"}, ports, standard, 1},

		{"fragment stays with another slice size", vars{"MC_SLICE_SIZE": "1048576"}, fragment, 16384, 0},
		{"fragment by ratio", vars{"MC_SLICE_SIZE": "1048576", "MC_FRAGMENT_RATIO": "8"}, fragment, 131072, 0},
		{"ratio 1", vars{"MC_FRAGMENT_RATIO": "1"}, fragment, 65536, 0},
		{"largest ratio", vars{"MC_FRAGMENT_RATIO": "65535"}, fragment, 1, 0},
		{"bad ratio", vars{"MC_SLICE_SIZE": "1048576", "MC_FRAGMENT_RATIO": "0"}, fragment, 262144, 1},
		{"ratio as large as the slice", vars{"MC_SLICE_SIZE": "4096", "MC_FRAGMENT_RATIO": "4096"}, fragment, 1024, 1},
		{"ratio against the default of a bad slice size", vars{"MC_SLICE_SIZE": "x", "MC_FRAGMENT_RATIO": "2"}, fragment, 32768, 1},

		{"gid: nobody says", vars{}, gid, "-1 by ", 0},
		{"gid: ours", vars{"MC_GID_INDEX": "3", "NCCL_IB_GID_INDEX": "1"}, gid, "3 by MC_GID_INDEX", 0},
		{"gid: NCCL's", vars{"NCCL_IB_GID_INDEX": "1"}, gid, "1 by NCCL_IB_GID_INDEX", 0},
		{"gid: bad, and NCCL's is not asked", vars{"MC_GID_INDEX": "abc", "NCCL_IB_GID_INDEX": "1"}, gid, "-1 by ", 1},

		{"one affinity", vars{"MC_ENABLE_HCA_PEER_AFFINITY": "1"}, affinities, [2]bool{false, true}, 0},
		{"both affinities", vars{"MC_ENABLE_HCA_PEER_AFFINITY": "1", "MC_ENABLE_DEST_DEVICE_AFFINITY": "1"}, affinities, [2]bool{}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env, warnings := load(tc.vars)
			if got := tc.of(env); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if len(warnings) != tc.warnings {
				t.Errorf("got %d warnings, want %d: %q", len(warnings), tc.warnings, warnings)
			}
		})
	}
}

func TestPXN(t *testing.T) {
	good := vars{"MC_PXN_ENABLE": "1", "MC_PXN_GROUP_ID": "node-7.a_B"}
	for _, tc := range []struct {
		name, variable, value string
		off                   string // a part of the reason; "" means on
	}{
		{"on", "MC_PXN_ENABLE", "yes", ""},
		{"not asked for", "MC_PXN_ENABLE", "0", "-"},
		{"enable", "MC_PXN_ENABLE", "maybe", `MC_PXN_ENABLE="maybe" is not valid: want 1, true`},
		{"no group", "MC_PXN_GROUP_ID", "", `MC_PXN_GROUP_ID="" is not valid: want 1 to 64 of A-Z`},
		{"dot", "MC_PXN_GROUP_ID", ".", `MC_PXN_GROUP_ID="." is not`},
		{"dots", "MC_PXN_GROUP_ID", "..", `MC_PXN_GROUP_ID=".." is not`},
		{"three dots", "MC_PXN_GROUP_ID", "...", ""},
		{"slash", "MC_PXN_GROUP_ID", "../../etc", `MC_PXN_GROUP_ID="../../etc" is not`},
		{"64 bytes", "MC_PXN_GROUP_ID", strings.Repeat("x", 64), ""},
		{"65 bytes", "MC_PXN_GROUP_ID", strings.Repeat("x", 65), `MC_PXN_GROUP_ID="xxx`},
		{"depth 1", "MC_PXN_INFLIGHT_DEPTH", "1", ""},
		{"depth 64", "MC_PXN_INFLIGHT_DEPTH", "64", ""},
		{"depth 0", "MC_PXN_INFLIGHT_DEPTH", "0", `MC_PXN_INFLIGHT_DEPTH="0" is not valid: want an integer from 1 to 64`},
		{"depth 65", "MC_PXN_INFLIGHT_DEPTH", "65", `MC_PXN_INFLIGHT_DEPTH="65" is not`},
		{"credit", "MC_PXN_CREDIT_TIMEOUT_MS", "4294967295", ""},
		{"credit over", "MC_PXN_CREDIT_TIMEOUT_MS", "4294967296", `MC_PXN_CREDIT_TIMEOUT_MS="4294967296" is not valid: want an integer from 1 to 4294967295`},
		{"heartbeat", "MC_PXN_HEARTBEAT_TIMEOUT_MS", "0", `MC_PXN_HEARTBEAT_TIMEOUT_MS="0" is not`},
		{"doorbell", "MC_PXN_DOORBELL", "CPU", ""},
		{"no doorbell", "MC_PXN_DOORBELL", "gpu", `MC_PXN_DOORBELL="gpu" is not valid: want auto, stream, kernel or cpu`},
		{"strict", "MC_PXN_STRICT", "2", `MC_PXN_STRICT="2" is not`},
		{"slot below", "MC_PXN_SLOT_SIZE", "128KiB", `MC_PXN_SLOT_SIZE="128KiB" is not`},
		{"slot above", "MC_PXN_SLOT_SIZE", "16777216", `MC_PXN_SLOT_SIZE="16777216" is not`},
		{"slot in another unit", "MC_PXN_SLOT_SIZE", "1MB", `MC_PXN_SLOT_SIZE="1MB" is not`},
		{"slot overflow", "MC_PXN_SLOT_SIZE", "9007199254740993GiB", `MC_PXN_SLOT_SIZE="9007199254740993GiB" is not`},
		{"map", "MC_PXN_RAIL_MAP", `{"mlx5_0":"rail0"}`, ""},
		{"no map", "MC_PXN_RAIL_MAP", `{"mlx5_0":"rail0",}`, `MC_PXN_RAIL_MAP="{\"mlx5_0\":\"rail0\",}" is not valid: want a JSON object`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := maps.Clone(good)
			v[tc.variable] = tc.value
			env, warnings := load(v)
			switch tc.off {
			case "", "-":
				if env.PXN.On() != (tc.off == "") || env.PXN.Off != "" || len(warnings) != 0 {
					t.Errorf("on %v, off because %q, warnings %q", env.PXN.On(), env.PXN.Off, warnings)
				}
			default:
				if env.PXN.On() || !strings.HasPrefix(env.PXN.Off, tc.off) {
					t.Errorf("on %v, off because %q, want %q", env.PXN.On(), env.PXN.Off, tc.off)
				}
				if !slices.Equal(warnings, []string{env.PXN.Off}) {
					t.Errorf("warnings %q, want the reason once", warnings)
				}
			}
		})
	}
}

func TestPXNFirstReasonStays(t *testing.T) {
	env, warnings := load(vars{"MC_PXN_ENABLE": "1", "MC_PXN_GROUP_ID": "g", "MC_PXN_INFLIGHT_DEPTH": "0", "MC_PXN_STRICT": "x"})
	if !strings.HasPrefix(env.PXN.Off, "MC_PXN_INFLIGHT_DEPTH=") || len(warnings) != 2 {
		t.Errorf("off because %q, warnings %q", env.PXN.Off, warnings)
	}
}

func TestBeat(t *testing.T) {
	for _, tc := range []struct{ timeout, want time.Duration }{
		{3 * time.Second, time.Second},
		{time.Minute, time.Second},
		{300 * time.Millisecond, 100 * time.Millisecond},
	} {
		if got := (PXN{HeartbeatTimeout: tc.timeout}).Beat(); got != tc.want {
			t.Errorf("Beat for %v = %v, want %v", tc.timeout, got, tc.want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int{
		"0": 0, "1": 1, "1B": 1, "2K": 2048, "2k": 2048, "2KiB": 2048, "3M": 3 << 20, "3 MiB": 3 << 20, "1g": 1 << 30, "1GiB": 1 << 30,
		"": -1, "K": -1, "-1": -1, "1KB": -1, "1.5M": -1, "1 M M": -1, "1MiBM": -1, fmt.Sprint(math.MaxInt): -1, "9999999999G": -1,
	} {
		got, err := parseSize(text)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestSet(t *testing.T) {
	env, _ := load(vars{"NCCL_IB_GID_INDEX": "1", "MC_MAX_WR": "abc", "MC_REDIS_PASSWORD": "s3cret", "MC_MTU": "1024"})
	want := []Setting{
		{"MC_REDIS_PASSWORD", "MC_REDIS_PASSWORD", "(hidden)"},
		{"MC_GID_INDEX", "NCCL_IB_GID_INDEX", "1"},
		{"MC_MTU", "MC_MTU", "1024"},
	}
	if diff := cmp.Diff(want, env.Set); diff != "" {
		t.Errorf("Set (-want +got):\n%s", diff)
	}
	if got, want := env.String(), `MC_REDIS_PASSWORD="(hidden)" NCCL_IB_GID_INDEX="1" MC_MTU="1024"`; got != want {
		t.Errorf("String = %s, want %s", got, want)
	}
	if got := Default().String(); got != "all defaults" {
		t.Errorf("String = %s", got)
	}
}

func TestFromEnviron(t *testing.T) {
	t.Setenv("MC_MAX_WR", "512")
	t.Setenv("MC_PXN_ENABEL", "1")
	env, warnings := FromEnviron()
	if env.RDMA.MaxWR != 512 {
		t.Errorf("MaxWR = %d, want 512", env.RDMA.MaxWR)
	}
	if !slices.ContainsFunc(warnings, func(w Warning) bool { return w.Name == "MC_PXN_ENABEL" }) {
		t.Errorf("no warning names MC_PXN_ENABEL: %v", warnings)
	}
}
