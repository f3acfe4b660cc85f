// Command libtransfer_engine is railhop as a C library, libtransfer_engine.so, with the
// functions of Mooncake's transfer_engine_c.h, and those of railhop.h for what Mooncake's
// do not have. Build it with
//
//	CGO_ENABLED=1 go build -tags=netgo,osusergo -buildmode=c-shared -o libtransfer_engine.so ./cmd/libtransfer_engine
//
// Three layers, each thin: api.c has the functions that C calls, and refuses to enter Go
// in a forked child; exports*.go turn C's arguments into Go's; internal/capi does the
// rest. Engines and batches are numbers in C's eyes. No pointer of Go's gets out, C's are
// used during a call only, and a panic ends as an error code of the call.
//
// Without cgo the package is an empty program.
package main

func main() {}
