# make help lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The product is built without cgo. Only the race detector needs it, and says so.
export CGO_ENABLED := 0

# How long each fuzz target runs in make fuzz.
FUZZTIME ?= 1m
# Which tests make test runs a second time with the race detector: inprocess
# (all but the packages below), all, or none.
TEST_RACE ?= inprocess
# Packages whose tests start processes and take long under the race detector.
MULTIPROCESS := railhop railhop/internal/cli railhop/internal/faulttest railhop/internal/testkit \
	railhop/cmd/libtransfer_engine railhop/python
# Seeds of make sim.
SEEDS ?= 20000
FROM ?= 1
# Rounds of make kill, rolling and leaks, and MiB that each process of make kill touches.
ROUNDS ?= 2000
TOUCH ?= 1024
TRACE ?=
# How long make soak runs, and which rows make conformance runs, such as 1,20-30 (all).
MINUTES ?= 10
ROWS ?=
# How often make bench-rxe measures each.
ALTERNATIONS ?= 10
# More flags for go test, such as TESTFLAGS='-run Lane -v'.
TESTFLAGS ?=
TEST_TIMEOUT ?= 8m

inprocess = $(shell go list ./... | grep -vxF $(MULTIPROCESS:%=-e github.com/railhop/%))
race_packages = $(if $(filter all,$(TEST_RACE)),./...,$(if $(filter inprocess,$(TEST_RACE)),$(inprocess)))

# What runs on Soft-RoCE devices, in a machine that boots once for each number of them: see docs/testing.md.
RXE_DEVICES ?= 4
rxe = exec env RXE_VM_OPTIONS='-n $(1) -m $(2) -t $(3)' tools/rxe-vm/gotest -test.timeout=$(3)s
rxe_nic = './internal/nic/verbs=^(TestConformance|TestDataPathAllocatesNothing|TestIdleQueueSleeps|TestEvents)$$'
rxe_engine = ^(TestDirect|TestRelayed|TestBadRequests|TestStormOfHandshakes|TestCloseEndsWaiters|TestRXE.*)$$
rxe_more = './internal/path/rdma=OverNICs$$' '.=$(rxe_engine)' './internal/faulttest=^TestRXE'
rxe_suites = $(rxe_nic) $(rxe_more)
rxe_two_and_eight = $(foreach n,2 8,-- $(call rxe,$(n),4096,600) -test.short $(rxe_suites))
rxe_interop = '.=^TestInteropRXE'

.PHONY: interop-rxe test-rxe test-rxe-full lib wheel interop conformance callers soak compare bench-rxe help setup build demo test lint race fuzz model sim kill kill-rxe rolling leaks bugs bench bench-gpu clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing and fetch the modules
	@tools/setup.sh

build: ## build bin/railhop
	@tools/setup.sh build
	go build -trimpath -o bin/railhop ./cmd/railhop

lib: ## build bin/libtransfer_engine.so for C callers, with its headers
	@tools/setup.sh
	CGO_ENABLED=1 go build -trimpath -buildvcs=false -tags=netgo,osusergo -buildmode=c-shared -ldflags '-s -w -extldflags=-Wl,-soname,libtransfer_engine.so' \
		-o bin/libtransfer_engine.so ./cmd/libtransfer_engine
	cp cmd/libtransfer_engine/transfer_engine_c.h cmd/libtransfer_engine/railhop.h bin/ && rm -f bin/libtransfer_engine.h

# The C compiler that links against an old glibc.
ZIG ?= 0.15.2

wheel: setup ## build the Python wheels for manylinux_2_28 in dist, with zig cc
	[ -x .cache/wheel/bin/python ] || python3 -m venv .cache/wheel
	.cache/wheel/bin/pip install --quiet --disable-pip-version-check ziglang==$(ZIG)
	.cache/wheel/bin/python python/build_railhop.py --manylinux dist
	go test -count=1 -run '^TestWheel' ./python

demo: build ## play a small rail fabric on this machine, without hardware
	bin/railhop demo --soft

test: setup lint ## lint, then run every test and say what ran, what was skipped and why
	@real=(); \
		if why=$$(tools/rxe-vm/rxe-vm --setup 2>&1 >/dev/null); then \
			real=($(rxe_two_and_eight)); \
		else echo "no tests on Soft-RoCE devices: $$why"; fi; \
		go run ./tools/testsum -again -vet=off -shuffle=on -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./... \
		-- $(if $(race_packages),-race -vet=off -shuffle=on -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(race_packages)) "$${real[@]}"

test-rxe: setup ## run NICs, RDMA and PXN on 2 and on 8 Soft-RoCE devices, in a machine that is emulated
	@tools/rxe-vm/rxe-vm --setup
	@go run ./tools/testsum $(rxe_two_and_eight)

test-rxe-full: setup ## the same and more, at full length, on RXE_DEVICES (4) devices, with Mooncake's wheel
	@tools/rxe-vm/rxe-vm --setup; tools/interop/setup.sh
	@go run ./tools/testsum $(call rxe,$(RXE_DEVICES),8192,3600) ./internal/nic/verbs=. $(rxe_more) $(rxe_interop)

interop: setup ## move bytes to and from Mooncake's own wheel, by TCP; WHEEL=newest takes the newest
	tools/interop/setup.sh
	go test -count=1 -v -run '^TestInterop' . | grep -v INFO

interop-rxe: setup ## move bytes to and from Mooncake's wheel by RDMA, in a machine that is emulated
	@tools/rxe-vm/rxe-vm --setup; tools/interop/setup.sh
	@go run ./tools/testsum $(call rxe,3,4096,600) -test.short $(rxe_interop)

conformance: setup ## compare the wheel and ours with the 135 rows; WHEEL=newest shows where the newest differs
	tools/interop/setup.sh
	@overlay=$$(tools/conformance/setup.sh); odd=0; \
		.cache/interop/bin/python tools/conformance $(ROWS:%=--rows %) || odd=1; \
		PYTHONPATH=$$overlay .cache/ours/bin/python tools/conformance $(ROWS:%=--rows %) || odd=1; exit $$odd

callers: ## run SGLang's and vLLM's own transfer code, from their packages, on ours
	@overlay=$$(tools/conformance/setup.sh); .cache/ours/bin/python tools/callers/fetch.py; \
		export PYTHONPATH=$$overlay:$(CURDIR)/.cache/callers/site; \
		.cache/ours/bin/python tools/callers/sglang_wrapper.py prefill; \
		.cache/ours/bin/python tools/callers/vllm_connector.py producer

soak: setup ## random transfers and restarts for MINUTES (10), with the wheel and without, watching growth
	tools/interop/setup.sh
	@overlay=$$(tools/conformance/setup.sh); .cache/ours/bin/python tools/soak --minutes $(MINUTES) \
		--overlay $$overlay --ours .cache/ours/bin/python --wheel .cache/interop/bin/python

compare: interop ## measure writes by TCP beside the wheel's
	@overlay=$$(tools/conformance/setup.sh); go run ./tools/interop/compare -overlay $$overlay 2>&1 | grep -v '^[IWE][0-9]\|^WARNING'

bench-rxe: setup ## measure RDMA beside Mooncake's newest wheel and ib_write_bw, in a machine that is emulated
	@tools/rxe-vm/rxe-vm --setup; mkdir -p .cache/tmp bench/rxe; WHEEL=newest tools/interop/setup.sh
	@overlay=$$(tools/conformance/setup.sh); CGO_ENABLED=0 go build -o .cache/tmp/compare ./tools/interop/compare; \
		tools/rxe-vm/rxe-vm -n 2 -m 3072 -t 1800 .cache/tmp/compare -rdma rxe0,rxe1 -alternations $(ALTERNATIONS) -overlay $$overlay >.cache/tmp/bench-rxe.json; \
		mv .cache/tmp/bench-rxe.json bench/rxe/$$(date +%F).json
	go run ./tools/interop/compare -docs bench/rxe >docs/benchmarks-rdma.md

race: setup ## run every test with the race detector
	go run ./tools/testsum -race -shuffle=on -timeout 20m $(TESTFLAGS) ./...

lint: setup ## gofmt, go vet and staticcheck, for amd64 and arm64
	@unformatted=$$(gofmt -l .); \
		if [ -n "$$unformatted" ]; then echo "not as gofmt writes it:"; echo "$$unformatted"; exit 1; fi
	GOARCH=amd64 go vet ./...
	CGO_ENABLED=1 go vet ./cmd/libtransfer_engine
	GOARCH=arm64 go vet ./internal/gpu/cuda
	GOARCH=arm64 go build ./...
	go tool staticcheck ./...

fuzz: setup ## run each fuzz target for FUZZTIME (1m)
	@tools/fuzz.sh $(FUZZTIME)

model: ## check the lane exhaustively: every interleaving and fault within bounds
	go test -count=1 -timeout 30m -run '^(TestFull|TestBugs)$$' ./internal/lane/model -v -args -full

sim: ## run SEEDS (20000) seeds of the simulation, from FROM; TRACE=1 prints what happens
	GOMAXPROCS=1 go test -count=1 -timeout 0 -run '^TestSeeds$$' -v ./internal/sim -args -seeds $(SEEDS) -from $(FROM) $(if $(TRACE),-trace)

kill: ## ROUNDS (2000) deaths and stops of processes of TOUCH (1024) MiB under streams of writes
	go test -count=1 -timeout 0 -run '^TestKill$$' -v ./internal/faulttest -args -rounds $(ROUNDS) -touch $(TOUCH) $(if $(WIRE),-wire)

kill-rxe: ROUNDS = 100
kill-rxe: TOUCH = 64
kill-rxe: setup ## the same on Soft-RoCE devices, in a machine that is emulated: ROUNDS (100) of about 10 s, TOUCH (64)
	@tools/rxe-vm/rxe-vm --setup; mkdir -p .cache/tmp; go test -c -vet=off -o .cache/tmp/kill.test ./internal/faulttest
	cd internal/faulttest; ../../tools/rxe-vm/rxe-vm -n 2 -m 4096 -t $$((300 + 60 * $(ROUNDS))) ../../.cache/tmp/kill.test -test.timeout 0 \
		-test.run '^TestRXEKill$$' -test.v -rounds $(ROUNDS) -touch $(TOUCH) $(if $(WIRE),-wire)

rolling: ## restart all ranks in turn, ROUNDS (2000) times, under streams of writes
	go test -count=1 -timeout 0 -run '^TestRolling$$' -v ./internal/faulttest -args -rolls $(ROUNDS)

leaks: ## ROUNDS (2000) faults, after which nothing more may be held than before
	go test -count=1 -timeout 0 -run '^TestLeaks$$' -v ./internal/faulttest -args -leaks $(ROUNDS)

bugs: ## how many seeds of the simulation it takes to find each planted bug
	GOMAXPROCS=1 go test -count=1 -timeout 0 -run '^TestBugs$$' -v ./internal/sim -args -tries 2000

bench: setup ## run every benchmark
	go test -run '^$$' -bench . -benchmem -timeout 20m ./...

bench-gpu: setup ## measure the GPU layer, on a machine with a GPU, and write docs/benchmarks.md
	go run ./bench/gpu
	go run ./bench/gpu -docs

clean: ## remove what was built
	rm -rf bin dist report*.html
