package main

// #include <stdint.h>
// #include <stdlib.h>
// #include "fork.h"
import "C"

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/capi"
	"github.com/railhop/railhop/internal/xfer"
)

// library is the process's engines and batches, as C knows them by number.
var library = capi.NewLibrary()

// rescue turns a panic into a result of the call.
func rescue[T any](result *T, failed T) {
	if p := recover(); p != nil {
		fmt.Fprintf(os.Stderr, "railhop: a bug: %v\n", p)
		*result = failed
	}
}

// explain hands the text of an error to C.
func explain(why **C.char, err error) {
	if err != nil && why != nil {
		*why = C.CString(err.Error())
	}
}

func numbers(p *C.uint64_t, n C.size_t) []uint64 {
	return unsafe.Slice((*uint64)(p), int(n))
}

// text is a string of C's, "" for NULL.
func text(s *C.char) string { return C.GoString(s) }

// variables splits an environment as api.c makes it.
func variables(env *C.char, size C.size_t) []string {
	block := string(unsafe.Slice((*byte)(unsafe.Pointer(env)), int(size)))
	return strings.Split(strings.TrimRight(block, "\x00"), "\x00")
}

//export railhopGoOpen
func railhopGoOpen(env *C.char, size C.size_t, host, metadata, protocol, devices *C.char, manual C.int, why **C.char) (id C.uint64_t) {
	defer rescue(&id, 0)
	n, err := library.Open(capi.Options{
		Host: text(host), Metadata: text(metadata), Protocol: text(protocol), Devices: text(devices),
		Manual: manual != 0, Environ: variables(env, size),
	})
	explain(why, err)
	if e, err := library.Engine(n); err == nil && e.Folder() != "" {
		folder := C.CString(e.Folder())
		defer C.free(unsafe.Pointer(folder))
		C.fork_watch_folder(folder)
	}
	return C.uint64_t(n)
}

//export railhopGoClose
func railhopGoClose(id C.uint64_t) (rc C.int) {
	defer rescue(&rc, -1)
	return C.int(capi.Code(library.Destroy(uint64(id))))
}

//export railhopGoCloseAll
func railhopGoCloseAll() (rc C.int) {
	defer rescue(&rc, -1)
	return C.int(capi.Code(library.DestroyAll()))
}

var graceful sync.Once

//export railhopGoGraceful
func railhopGoGraceful() {
	graceful.Do(func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
		go func() {
			s := (<-signals).(syscall.Signal)
			library.DestroyAll()
			os.Exit(128 + int(s))
		}()
	})
}

// call runs f with an engine and gives its error to C.
func call(id C.uint64_t, why **C.char, f func(e *capi.Engine) error) (rc C.int) {
	defer rescue(&rc, -1)
	e, err := library.Engine(uint64(id))
	if err == nil {
		err = f(e)
	}
	explain(why, err)
	return C.int(capi.Code(err))
}

//export railhopGoPort
func railhopGoPort(id C.uint64_t, why **C.char) C.int {
	var port int
	rc := call(id, why, func(e *capi.Engine) (err error) {
		port, err = e.Port()
		return err
	})
	if rc != 0 {
		return -1
	}
	return C.int(port)
}

//export railhopGoName
func railhopGoName(id C.uint64_t) *C.char {
	var name string
	rc := call(id, nil, func(e *capi.Engine) (err error) {
		name, err = e.Name()
		return err
	})
	if rc != 0 {
		return nil
	}
	return C.CString(name)
}

//export railhopGoLinks
func railhopGoLinks(id C.uint64_t, asJSON C.int) *C.char {
	var links string
	rc := call(id, nil, func(e *capi.Engine) (err error) {
		links, err = e.Links(asJSON != 0)
		return err
	})
	if rc != 0 {
		return nil
	}
	return C.CString(links)
}

//export railhopGoInstall
func railhopGoInstall(id C.uint64_t, protocol, matrix *C.char) C.int {
	return call(id, nil, func(e *capi.Engine) error { return e.InstallTransport(text(protocol), text(matrix)) })
}

//export railhopGoSegment
func railhopGoSegment(id C.uint64_t, name *C.char, fresh C.int) C.int32_t {
	var segment int32
	rc := call(id, nil, func(e *capi.Engine) (err error) {
		segment, err = e.OpenSegment(text(name), fresh != 0)
		return err
	})
	if rc != 0 {
		return -1
	}
	return C.int32_t(segment)
}

//export railhopGoForget
func railhopGoForget(id C.uint64_t, name *C.char) C.int {
	return call(id, nil, func(e *capi.Engine) error {
		e.ForgetSegment(text(name))
		return nil
	})
}

//export railhopGoSync
func railhopGoSync(id C.uint64_t) C.int {
	return call(id, nil, (*capi.Engine).SyncSegments)
}

//export railhopGoRegister
func railhopGoRegister(id C.uint64_t, addrs, lengths *C.uint64_t, n C.size_t, location *C.char, remote C.int, why **C.char) C.int {
	return call(id, why, func(e *capi.Engine) error {
		regions := make([]railhop.Region, n)
		as, ls, at := numbers(addrs, n), numbers(lengths, n), text(location)
		for i := range regions {
			regions[i] = railhop.Region{Addr: as[i], Length: ls[i], Location: at, LocalOnly: remote == 0}
		}
		return e.Register(regions)
	})
}

//export railhopGoUnregister
func railhopGoUnregister(id C.uint64_t, addrs *C.uint64_t, n C.size_t, why **C.char) C.int {
	return call(id, why, func(e *capi.Engine) error { return e.Unregister(numbers(addrs, n)) })
}

//export railhopGoAllocate
func railhopGoAllocate(id, length C.uint64_t, why **C.char) C.uint64_t {
	var addr uint64
	call(id, why, func(e *capi.Engine) (err error) {
		addr, err = e.Allocate(uint64(length))
		return err
	})
	return C.uint64_t(addr)
}

//export railhopGoFree
func railhopGoFree(id, addr C.uint64_t) C.int {
	return call(id, nil, func(e *capi.Engine) error {
		e.Free(uint64(addr))
		return nil
	})
}

//export railhopGoFirstBuffer
func railhopGoFirstBuffer(id C.uint64_t, segment *C.char, why **C.char) C.uint64_t {
	var addr uint64
	call(id, why, func(e *capi.Engine) (err error) {
		addr, err = e.FirstBuffer(text(segment))
		return err
	})
	return C.uint64_t(addr)
}

//export railhopGoProbe
func railhopGoProbe(id C.uint64_t, peer *C.char, why **C.char) C.int {
	return call(id, why, func(e *capi.Engine) error { return e.Probe(text(peer)) })
}

//export railhopGoStats
func railhopGoStats(id C.uint64_t, why **C.char) *C.char {
	var stats []byte
	rc := call(id, why, func(e *capi.Engine) (err error) {
		stats, err = e.Stats()
		return err
	})
	if rc != 0 {
		return nil
	}
	return C.CString(string(stats))
}

//export railhopGoLastError
func railhopGoLastError(id C.uint64_t) *C.char {
	last := ""
	rc := call(id, nil, func(e *capi.Engine) error {
		last = e.LastError()
		return nil
	})
	if rc != 0 {
		return nil
	}
	return C.CString(last)
}

//export railhopGoTopology
func railhopGoTopology(env *C.char, size C.size_t, devices *C.char, why **C.char) (result *C.char) {
	defer rescue(&result, nil)
	matrix, err := capi.Topology(variables(env, size), text(devices))
	if err != nil {
		explain(why, err)
		return nil
	}
	return C.CString(matrix)
}

// opcode is an opcode of C's, if it is one.
func opcode(op C.int) (railhop.Opcode, error) {
	if op != C.int(railhop.Read) && op != C.int(railhop.Write) {
		return 0, fmt.Errorf("railhop: opcode %d: want %d to read or %d to write: %w", int(op), railhop.Read, railhop.Write, xfer.ErrInvalidArgument)
	}
	return railhop.Opcode(op), nil
}
