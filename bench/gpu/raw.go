package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/dl"
	"github.com/railhop/railhop/internal/gpu"
)

// raw is bare calls of the driver, to compare with and to play the model.
type raw struct {
	streamCreate, streamSynchronize, memcpyAsync, memset, write64 dl.Proc
	memGetInfo, batch, batchV2                                    dl.Proc
	beginCapture, endCapture, instantiate, launch, destroyGraph   dl.Proc
	ctxGetCurrent, ctxSetCurrent                                  dl.Proc

	mem  []byte // for out-parameters and arrays
	args [dl.MaxArgs]uintptr
}

// Places in raw.mem.
const (
	rawOut, rawAttrs, rawFirst, rawFail    = 0, 64, 128, 192
	rawBatch                               = 4096
	rawDst, rawSrc, rawLength, rawMemBytes = rawBatch, rawBatch + 8*4096, rawBatch + 16*4096, rawBatch + 24*4096
)

func bindRaw() (*raw, error) {
	lib, err := dl.Open("libcuda.so.1")
	if err != nil {
		return nil, err
	}
	r := &raw{}
	if err := dl.Bind(lib, 0, []dl.Symbol{
		{Names: []string{"cuStreamCreateWithPriority"}, Target: &r.streamCreate},
		{Names: []string{"cuStreamSynchronize"}, Target: &r.streamSynchronize},
		{Names: []string{"cuMemcpyAsync"}, Target: &r.memcpyAsync},
		{Names: []string{"cuMemGetInfo_v2"}, Target: &r.memGetInfo},
		{Names: []string{"cuMemsetD8Async"}, Target: &r.memset},
		{Names: []string{"cuStreamWriteValue64_v2", "cuStreamWriteValue64"}, Target: &r.write64},
		{Names: []string{"cuStreamBeginCapture_v2"}, Target: &r.beginCapture},
		{Names: []string{"cuStreamEndCapture"}, Target: &r.endCapture},
		{Names: []string{"cuGraphInstantiateWithFlags"}, Target: &r.instantiate, Optional: true},
		{Names: []string{"cuGraphLaunch"}, Target: &r.launch, Optional: true},
		{Names: []string{"cuGraphDestroy"}, Target: &r.destroyGraph},
		{Names: []string{"cuCtxGetCurrent"}, Target: &r.ctxGetCurrent},
		{Names: []string{"cuCtxSetCurrent"}, Target: &r.ctxSetCurrent},
		{Names: []string{"cuMemcpyBatchAsync_v2"}, Target: &r.batchV2, Optional: true},
		{Names: []string{"cuMemcpyBatchAsync"}, Target: &r.batch, Optional: true},
	}); err != nil {
		return nil, err
	}
	r.mem, err = unix.Mmap(-1, 0, rawMemBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	return r, err
}

func (r *raw) at(offset int) uintptr { return uintptr(addressOf(r.mem[offset:])) }

func (r *raw) call(name string, p dl.Proc, args ...uintptr) error {
	n := copy(r.args[:], args)
	if code := int32(p.Call(r.args[:n]...)); code != 0 {
		return fmt.Errorf("%s: error %d", name, code)
	}
	return nil
}

func (r *raw) stream() (uintptr, error) {
	const nonBlocking = 1
	err := r.call("cuStreamCreateWithPriority", r.streamCreate, r.at(rawOut), nonBlocking, 0)
	return uintptr(wordAt(r.mem, rawOut).Load()), err
}

// current is the calling thread's context.
func (r *raw) current() (uintptr, error) {
	err := r.call("cuCtxGetCurrent", r.ctxGetCurrent, r.at(rawOut))
	return uintptr(wordAt(r.mem, rawOut).Load()), err
}

func (r *raw) setCurrent(context uintptr) error {
	return r.call("cuCtxSetCurrent", r.ctxSetCurrent, context)
}

// capture begins a graph in global mode, which forbids what could be unsafe to all
// threads. The returned function ends it, and runs the graph.
func (r *raw) capture(stream uintptr) (end func() error, err error) {
	const global = 0
	return func() error {
		if err := r.call("cuStreamEndCapture", r.endCapture, stream, r.at(rawOut)); err != nil {
			return err
		}
		graph := uintptr(wordAt(r.mem, rawOut).Load())
		if r.instantiate.Found() && r.launch.Found() {
			if err := r.call("cuGraphInstantiate", r.instantiate, r.at(rawOut), graph, 0); err != nil {
				return err
			}
			if err := r.call("cuGraphLaunch", r.launch, uintptr(wordAt(r.mem, rawOut).Load()), stream); err != nil {
				return err
			}
			if err := r.sync(stream); err != nil {
				return err
			}
		}
		return r.call("cuGraphDestroy", r.destroyGraph, graph)
	}, r.call("cuStreamBeginCapture", r.beginCapture, stream, global)
}

// memory is of the device, in bytes.
func (r *raw) memory() (free, total uint64, err error) {
	err = r.call("cuMemGetInfo", r.memGetInfo, r.at(rawOut), r.at(rawOut+8))
	return wordAt(r.mem, rawOut).Load(), wordAt(r.mem, rawOut+8).Load(), err
}

func (r *raw) sync(stream uintptr) error {
	return r.call("cuStreamSynchronize", r.streamSynchronize, stream)
}

func (r *raw) copy(c gpu.Copy, stream uintptr) error {
	return r.call("cuMemcpyAsync", r.memcpyAsync, uintptr(c.Dst), uintptr(c.Src), uintptr(c.Length), stream)
}

func (r *raw) write(at, value uint64, stream uintptr) error {
	return r.call("cuStreamWriteValue64", r.write64, stream, uintptr(at), uintptr(value), 0)
}

func (r *raw) fill(at uint64, value byte, n uint64, stream uintptr) error {
	return r.call("cuMemsetD8Async", r.memset, uintptr(at), uintptr(value), uintptr(n), stream)
}

// copyBatch gives all copies, 4096 at most, to the driver in one call.
func (r *raw) copyBatch(copies []gpu.Copy, stream uintptr) error {
	for i, c := range copies {
		wordAt(r.mem, rawDst+8*i).Store(c.Dst)
		wordAt(r.mem, rawSrc+8*i).Store(c.Src)
		wordAt(r.mem, rawLength+8*i).Store(c.Length)
	}
	r.mem[rawAttrs] = 1 // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
	args := []uintptr{r.at(rawDst), r.at(rawSrc), r.at(rawLength), uintptr(len(copies)), r.at(rawAttrs), r.at(rawFirst), 1}
	if r.batchV2.Found() {
		return r.call("cuMemcpyBatchAsync", r.batchV2, append(args, stream)...)
	}
	return r.call("cuMemcpyBatchAsync", r.batch, append(args, r.at(rawFail), stream)...)
}
