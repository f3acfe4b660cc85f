package config

import (
	"log/slog"
	"strings"
	"time"
)

const (
	maxInt32  = 1<<31 - 1
	maxUint32 = 1<<32 - 1

	// AllSMs stands in [PXN].GatherSMs for every multiprocessor there is.
	AllSMs = maxInt32

	minSlot = 256 << 10
	maxSlot = 8 << 20

	groupIDWords = `1 to 64 of A-Z, a-z, 0-9, "_", "." and "-", not "." or ".."`
	rpcPortWords = "a port from 1024 to 65535, outside 32768 to 60999"
)

// table is everything that railhop reads from the environment.
func table() []section {
	return []section{
		{"Names, daemon and metadata", namesTable()},
		{"Transport choice and topology", transportTable()},
		{"RDMA", rdmaTable()},
		{"PXN relay", pxnTable()},
		{"TCP transport", tcpTable()},
		{"Logging, metrics and deadlines", logTable()},
		{"Providers", providersTable()},
	}
}

func namesTable() []variable {
	return []variable{
		integer("MC_HANDSHAKE_PORT", func(e *Env) *int { return &e.Names.HandshakePort }, "12001", 1, 65535, "port assumed where a name has none"),
		rpcPort(minRPCPort, "MC_MIN_PRC_PORT", func(e *Env) *int { return &e.Names.MinRPCPort }, "15000", "lower end of the range from which the daemon draws its port"),
		rpcPort(maxRPCPort, "MC_MAX_PRC_PORT", func(e *Env) *int { return &e.Names.MaxRPCPort }, "17000", "upper end of that range; if either end is not valid, both are the defaults"),
		presence("MC_USE_IPV6", func(e *Env) *bool { return &e.Names.IPv6 }, "listen and connect by IPv6"),
		host("MC_TCP_BIND_ADDRESS", func(e *Env) *string { return &e.Names.TCPBindAddress }, "host of the daemon that is advertised with a metadata server; nothing is bound to it"),
		presence("MC_LEGACY_RPC_PORT_BINDING", func(e *Env) *bool { return &e.Names.LegacyRPCPort }, "with a metadata server: the daemon's host and port are those of the local name"),
		host("MC_RDMA_BIND_ADDRESS", func(e *Env) *string { return &e.Names.RDMABindAddr }, "host of the name that NIC paths are built from, P2PHANDSHAKE only"),
		integer("MC_HANDSHAKE_LISTEN_BACKLOG", func(e *Env) *int { return &e.Names.Backlog }, "128", 1, maxInt32, "connections that wait to be accepted by the daemon"),
		seconds("MC_HANDSHAKE_CONNECT_TIMEOUT", func(e *Env) *time.Duration { return &e.Names.ConnectTimeout }, "5", 1, 3599, "how long connecting to a peer's daemon may take"),
		integer("MC_HANDSHAKE_MAX_LENGTH", func(e *Env) *int { return &e.Names.MaxFrame }, "1048576", 1<<20, 128<<20, "bytes of the longest message taken from a peer; raise it on all nodes for many buffers or NICs"),
		text("MC_METADATA_CLUSTER_ID", func(e *Env) *string { return &e.Metadata.ClusterID }, "part of the prefix of all keys on a metadata server"),
		text("MC_REDIS_USERNAME", func(e *Env) *string { return &e.Metadata.RedisUsername }, "user on a Redis metadata server"),
		redisPassword(),
		integer("MC_REDIS_DB_INDEX", func(e *Env) *int { return &e.Metadata.RedisDB }, "0", 0, 255, "database on a Redis metadata server"),
		presence("MC_DISABLE_METACACHE", func(e *Env) *bool { return &e.Metadata.NoCache }, "fetch a peer's descriptor at every use"),
		seconds("MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", func(e *Env) *time.Duration { return &e.Metadata.RefreshInterval }, "0", 0, maxInt32, "how often all cached descriptors are fetched anew; 0 is never"),
	}
}

func transportTable() []variable {
	return []variable{
		presence("MC_FORCE_TCP", func(e *Env) *bool { return &e.Transport.ForceTCP }, "TCP only; no devices are looked for"),
		presence("MC_FORCE_HCA", func(e *Env) *bool { return &e.Transport.ForceHCA }, "RDMA even where no NIC was found"),
		text("MC_CUSTOM_TOPO_JSON", func(e *Env) *string { return &e.Transport.TopologyFile }, "path of a file with the topology, or its JSON, instead of discovery"),
		custom("MC_TE_FILTERS", "list", "", "device names with commas between them, such as mlx5_0,mlx5_1", "the devices that may be used; blanks around names are dropped, and names match whole", func(e *Env, text string) error {
			devices, err := parseFilters(text)
			if err == nil {
				e.Transport.Filters = devices
			}
			return err
		}),
		boolean("MC_PATH_ROUNDROBIN", func(e *Env) *bool { return &e.Transport.RoundRobin }, "0", "take the preferred NICs in turn instead of at random"),
		presence(destAffinity, func(e *Env) *bool { return &e.Transport.DestDeviceAffinity }, "prefer the peer's NIC of the same name"),
		boolean(peerAffinity, func(e *Env) *bool { return &e.Transport.HCAPeerAffinity }, "0", "use MC_NIC_PEER_AFFINITY; not together with "+destAffinity),
		custom("MC_NIC_PEER_AFFINITY", "map", "", "local=peer[,peer] with semicolons between them, such as mlx5_0=mlx5_0,mlx5_1;mlx5_1=mlx5_2", "which of the peer's NICs a local NIC writes to", func(e *Env, text string) error {
			m, err := parsePeerAffinity(text)
			if err == nil {
				e.Transport.NICPeerAffinity = m
			}
			return err
		}),
	}
}

func rdmaTable() []variable {
	return []variable{
		integer("MC_IB_PORT", func(e *Env) *int { return &e.RDMA.Port }, "1", 1, 255, "port of NICs whose names do not say one, as mlx5_0:2 does"),
		integer(gidIndex, func(e *Env) *int { return &e.RDMA.GIDIndex }, "-1", 0, 255, "index into the GID table; -1 chooses. The log says which variable decided", orElse("NCCL_IB_GID_INDEX")),
		integer("MC_AUTO_GID_MAX_RETRIES", func(e *Env) *int { return &e.RDMA.AutoGIDMaxRetries }, "2", 0, 16, "further GIDs tried where the first chosen does not connect"),
		integer("MC_PKEY_INDEX", func(e *Env) *int { return &e.RDMA.PKeyIndex }, "0", 0, 65535, "index into the partition key table"),
		oneOf("MC_MTU", func(e *Env) *int { return &e.RDMA.MTU }, "4096", "upper bound of the path MTU in bytes", 512, 1024, 2048, 4096),
		integer("MC_IB_TC", func(e *Env) *int { return &e.RDMA.TrafficClass }, "-1", 0, 255, "traffic class; -1 leaves it alone"),
		integer("MC_IB_SL", func(e *Env) *int { return &e.RDMA.ServiceLevel }, "-1", 0, 15, "service level; -1 leaves it alone"),
		integer("MC_NUM_QP_PER_EP", func(e *Env) *int { return &e.RDMA.QPsPerEndpoint }, "2", 1, 255, "queue pairs for each pair of NICs; must be the same on both nodes"),
		integer("MC_MAX_WR", func(e *Env) *int { return &e.RDMA.MaxWR }, "256", 1, 65535, "work requests for each queue pair"),
		integer("MC_MAX_SGE", func(e *Env) *int { return &e.RDMA.MaxSGE }, "4", 1, 65535, "scatter entries for each work request"),
		integer("MC_MAX_INLINE", func(e *Env) *int { return &e.RDMA.MaxInline }, "64", 0, 65535, "bytes that may be sent inline"),
		integer("MC_NUM_CQ_PER_CTX", func(e *Env) *int { return &e.RDMA.CQs }, "1", 1, 255, "completion queues for each NIC"),
		integer("MC_NUM_COMP_CHANNELS_PER_CTX", func(e *Env) *int { return &e.RDMA.CompChannels }, "1", 1, 255, "completion channels for each NIC"),
		integer("MC_MAX_CQE_PER_CTX", func(e *Env) *int { return &e.RDMA.MaxCQE }, "4096", 1, 65535, "entries of a completion queue, and work requests open at once on it"),
		integer("MC_MAX_EP_PER_CTX", func(e *Env) *int { return &e.RDMA.MaxEndpoints }, "65536", 1, 65536, "endpoints for each NIC"),
		enum("MC_ENDPOINT_STORE_TYPE", func(e *Env) *string { return &e.RDMA.EndpointStore }, "SIEVE", "which endpoint makes room for a new one", "FIFO", "SIEVE"),
		clamped("MC_WORKERS_PER_CTX", func(e *Env) *int { return &e.RDMA.Workers }, "2", 1, 8, "threads for each NIC in Mooncake; values outside the range count as its nearest end"),
		integer("MC_SLICE_SIZE", func(e *Env) *int { return &e.RDMA.SliceSize }, "65536", 1, maxInt32, "bytes of a slice, the unit of a work request"),
		custom(fragmentRatio, "integer", "", "an integer from 1 to one less than MC_SLICE_SIZE", "a rest of up to a slice and a fragment stays one slice, the fragment being MC_SLICE_SIZE / this; unset it is 16384 bytes, not valid it is 4", func(_ *Env, text string) error {
			_, err := inRange(text, "", 1, maxInt32-1)
			return err
		}),
		integer("MC_RETRY_CNT", func(e *Env) *int { return &e.RDMA.RetryCount }, "9", 1, 127, "attempts for each slice"),
		seconds("MC_SLICE_TIMEOUT", func(e *Env) *time.Duration { return &e.RDMA.SliceTimeout }, "-1", 1, 65535, "after which, and 1 ns a byte, a task that is not done reads as TIMEOUT until it is; -1 is never"),
		seconds("MC_RDMA_RAIL_PAUSE_SECONDS", func(e *Env) *time.Duration { return &e.RDMA.RailPause }, "30", 1, 3599, "how long a rail that failed is avoided, and a NIC after its port has come up again"),
		milliseconds("MC_CONN_PAUSE_TTL_MS", func(e *Env) *time.Duration { return &e.RDMA.ConnPause }, "0", 0, 600000, "how long a peer is not dialled after a connection to it was torn down; 0 is off"),
		integer("MC_MAX_MR_SIZE", func(e *Env) *int { return &e.RDMA.MaxMRSize }, "1099511627776", 1, 1<<63-1, "bytes of the largest memory region; longer buffers are cut"),
		oneOf("MC_ENABLE_PARALLEL_REG_MR", func(e *Env) *int { return &e.RDMA.ParallelRegMR }, "-1", "register memory with all NICs at once: 1 always, 0 never, -1 with more than one NIC and touched memory", -1, 0, 1),
		oneOf("MC_IB_PCI_RELAXED_ORDERING", func(e *Env) *int { return &e.RDMA.RelaxedOrdering }, "1", "relaxed PCIe ordering for registered memory: 0 off, 1 if the library has it, 2 demand it", 0, 1, 2),
		custom("WITH_NVIDIA_PEERMEM", "boolean", "", boolWords, "register GPU memory by the kernel module nvidia-peermem (1) or as a dma-buf (0) and not otherwise; unset: as a dma-buf where the driver exports it, else by nvidia-peermem", func(e *Env, text string) error {
			on, ok := parseBool(text)
			if !ok {
				return errValue
			}
			e.RDMA.GPUMemory = GPUMemoryDMABuf
			if on {
				e.RDMA.GPUMemory = GPUMemoryPeermem
			}
			return nil
		}),
	}
}

func pxnTable() []variable {
	return []variable{
		boolean("MC_PXN_ENABLE", func(e *Env) *bool { return &e.PXN.Enable }, "0", "relay writes that would cross rails"),
		custom(pxnGroupID, "name", "", groupIDWords, "the ranks of one node that may relay for each other; needed with MC_PXN_ENABLE", func(e *Env, text string) error {
			if !validGroupID(text) {
				return errValue
			}
			e.PXN.GroupID = text
			return nil
		}),
		custom("MC_PXN_RAIL_MAP", "JSON", "", `a JSON object of strings to strings, 1 to 255 bytes each, no name twice, such as {"mlx5_0":"rail0"}`, "device name to canonical rail; unset: rails are told by subnet, else by device name", func(e *Env, text string) error {
			m, err := parseRailMap(text)
			if err == nil {
				e.PXN.RailMap = m
			}
			return err
		}),
		integer("MC_PXN_INFLIGHT_DEPTH", func(e *Env) *int { return &e.PXN.Depth }, "4", 1, 64, "pieces that a relay forwards at once"),
		milliseconds("MC_PXN_CREDIT_TIMEOUT_MS", func(e *Env) *time.Duration { return &e.PXN.CreditTimeout }, "1000", 1, maxUint32, "how long a piece waits for a slot or to be claimed before it goes direct"),
		milliseconds("MC_PXN_HEARTBEAT_TIMEOUT_MS", func(e *Env) *time.Duration { return &e.PXN.HeartbeatTimeout }, "3000", 1, maxUint32, "after which a silent peer is suspected; the beat is every third of it, at most 1 s"),
		custom("MC_PXN_SLOT_SIZE", "size", "8MiB", "a power of two from 256KiB to 8MiB, in bytes or with K, KiB, M or MiB", "bytes of each of this rank's 126 slots; senders follow the relay", func(e *Env, text string) error {
			n, err := parseSize(text)
			if err != nil || n < minSlot || n > maxSlot || n&(n-1) != 0 {
				return errValue
			}
			e.PXN.SlotSize = n
			return nil
		}),
		custom("MC_PXN_GATHER_SMS", "integer", "4", "an integer from 1, or all", "blocks of a launch of the gather kernel, of which six run at once where many pieces wait; more than the GPU has count as all", func(e *Env, text string) error {
			if strings.EqualFold(text, "all") {
				e.PXN.GatherSMs = AllSMs
				return nil
			}
			n, err := inRange(text, "", 1, AllSMs)
			if err == nil {
				e.PXN.GatherSMs = n
			}
			return err
		}),
		enum("MC_PXN_DOORBELL", func(e *Env) *string { return &e.PXN.Doorbell }, "auto", "who rings the relay: a stream write, the gather kernel, or the CPU", "auto", "stream", "kernel", "cpu"),
		boolean("MC_PXN_STRICT", func(e *Env) *bool { return &e.PXN.Strict }, "0", "a task that should have been relayed and could not be is an error instead of going direct"),
		boolean("MC_PXN_FLUSH", func(e *Env) *bool { return &e.PXN.Flush }, "0", "read the last byte back on every queue pair and NIC used before a task is completed"),
	}
}

func tcpTable() []variable {
	return []variable{
		boolean("MC_TCP_ENABLE_CONNECTION_POOL", func(e *Env) *bool { return &e.TCP.Pool }, "0", "connections are kept, and several requests are sent over each, in any case"),
		integer("MC_TCP_LANES_PER_PEER", func(e *Env) *int { return &e.TCP.LanesPerPeer }, "4", 1, 16, "pooled connections for each peer", orElse("MC_TCP_MAX_CONNECTIONS_PER_PEER")),
		integer("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", func(e *Env) *int { return &e.TCP.MaxQueued }, "1024", 1, 65535, "requests under way to each peer; more of them wait"),
		integer("MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER", func(e *Env) *int { return &e.TCP.MaxPending }, "1024", 1, 65535, "taken for Mooncake's sake: any number may wait"),
		milliseconds("MC_TCP_ADMISSION_TIMEOUT_MS", func(e *Env) *time.Duration { return &e.TCP.AdmissionTimeout }, "1000", 1, 600000, "taken for Mooncake's sake: they wait as long as their deadline allows"),
		integer("MC_TCP_SLICE_SIZE", func(e *Env) *int { return &e.TCP.SliceSize }, "65536", 1, maxInt32, "taken for Mooncake's sake: a read or write moves what there is"),
		custom("MC_TCP_PROTO", "integer", "", "1", "1 forces the old protocol without acknowledgement", func(e *Env, text string) error {
			n, err := inRange(text, "", 1, 1)
			if err == nil {
				e.TCP.Proto = n
			}
			return err
		}),
		seconds("MC_TCP_STATUS_TIMEOUT_SEC", func(e *Env) *time.Duration { return &e.TCP.StatusTimeout }, "30", 1, maxInt32, "how long the peer's acknowledgement may take"),
	}
}

func logTable() []variable {
	return []variable{
		custom("MC_LOG_LEVEL", "word", "INFO", "TRACE, INFO, WARNING or ERROR", "the lowest level that is logged", func(e *Env, text string) error {
			level, ok := logLevel(text)
			if !ok {
				return errValue
			}
			e.Log.Level = level
			return nil
		}),
		text("MC_LOG_DIR", func(e *Env) *string { return &e.Log.Dir }, "a writable directory for log files; unset: standard error"),
		boolean("MC_TE_METRIC", func(e *Env) *bool { return &e.Log.Metrics }, "0", "log throughput and latency of transfers that are done, of batches too, in Mooncake's words"),
		seconds("MC_TE_METRIC_INTERVAL_SECONDS", func(e *Env) *time.Duration { return &e.Log.MetricsInterval }, "5", 1, maxInt32, "how often"),
		clampedSeconds("MC_TRANSFER_TIMEOUT", func(e *Env) *time.Duration { return &e.Log.TransferTimeout }, "30", 5, maxInt32, "deadline of a blocking transfer, to which 1 ns a byte is added; less than 5 counts as 5"),
	}
}

func providersTable() []variable {
	return []variable{
		custom("RAILHOP_PROVIDERS", "list", "auto", "auto, or a comma list of soft, cuda and verbs", "the hardware to use; auto is whatever real hardware is there. soft plays NICs and GPUs in software and is never used unless named", func(e *Env, text string) error {
			p, ok := parseProviders(text)
			if !ok {
				return errValue
			}
			p.SoftNICs, p.SoftGPUs = e.Providers.SoftNICs, e.Providers.SoftGPUs
			e.Providers = p
			return nil
		}),
		text("RAILHOP_SOFT_NICS", func(e *Env) *string { return &e.Providers.SoftNICs }, "the software NICs of this process"),
		text("RAILHOP_SOFT_GPUS", func(e *Env) *string { return &e.Providers.SoftGPUs }, "the software GPUs of this process"),
	}
}

func rpcPort(name, misspelt string, at func(*Env) *int, def, meaning string) variable {
	v := custom(name, "integer", def, rpcPortWords, meaning, func(e *Env, text string) error {
		n, err := inRange(text, "", 1024, 65535)
		if err != nil || n >= ephemeralMin && n <= ephemeralMax {
			return errValue
		}
		*at(e) = n
		return nil
	})
	v.others = []string{misspelt}
	return v
}

func redisPassword() variable {
	v := custom("MC_REDIS_PASSWORD", "password", "", "any text", "password on a Redis metadata server; never printed, and not trimmed", func(e *Env, text string) error {
		e.Metadata.RedisPassword = Secret(text)
		return nil
	})
	v.secret = true
	return v
}

func logLevel(text string) (slog.Level, bool) {
	switch strings.ToUpper(text) {
	case "TRACE":
		return LevelTrace, true
	case "INFO":
		return slog.LevelInfo, true
	case "WARNING":
		return slog.LevelWarn, true
	case "ERROR":
		return slog.LevelError, true
	}
	return 0, false
}

// inert is a variable that Mooncake reads and railhop does not.
type inert struct{ name, why string }

// withoutEffect lists the variables whose users should know that nothing comes
// of them.
func withoutEffect() []inert {
	const (
		otherGPUs   = "only CUDA GPUs are supported"
		otherNICs   = "for NICs that are not supported"
		nvlink      = "there is no NVLink transport; the relay copies over NVLink by itself"
		tent        = "the classic engine is what railhop speaks"
		diagnostics = "the counters tell as much, and are always on"
	)
	return []inert{
		{"MC_FORCE_MNNVL", nvlink},
		{"MC_INTRANODE_NVLINK", nvlink},
		{"MC_USE_NVLINK_IPC", nvlink},
		{"MC_FORCE_MUSA", otherGPUs},
		{"MC_MACA_HOST_TRANSPORT", otherGPUs},
		{"MC_DISABLE_HIP", otherGPUs},
		{"MC_DISABLE_MACA", otherGPUs},
		{"MC_DISABLE_MUSA", otherGPUs},
		{"MC_USE_HIP_IPC", otherGPUs},
		{"MC_HIP_NUM_STREAMS", otherGPUs},
		{"MC_HIP_NUM_EVENTS", otherGPUs},
		{"MOONCAKE_DISABLE_HIP_DMABUF", otherGPUs},
		{"MC_CXL_DEV_PATH", "there is no CXL transport"},
		{"MC_CXL_DEV_SIZE", "there is no CXL transport"},
		{"MC_USE_TENT", tent},
		{"MC_USE_TEV1", tent},
		{"MC_USE_RDMA_TWOSIDED", "notifications travel over the handshake daemon"},
		{"MC_MLX5_QP_UDP_SPORTS", "the queue pairs' source ports are left to the driver"},
		{"MC_MLX5_QP_LAG_PORT_BALANCE", "the queue pairs' ports are left to the driver"},
		{"MC_LOG_RDMA_SLICE_AFFINITY", diagnostics},
		{"MC_TRACK_RDMA_POSTED_SLICES", diagnostics},
		{"MC_MAX_CONCURRENT_REG_MR", otherNICs},
		{"MC_EFA_NIC_SELECTION", otherNICs},
		{"MC_EFA_CQ_THREADS", otherNICs},
		{"MC_MIN_REG_SIZE", otherNICs},
	}
}
