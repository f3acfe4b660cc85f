package verbs

import (
	"fmt"
	"structs"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/railhop/railhop/internal/dl"
	"github.com/railhop/railhop/internal/nic"
)

// The structs are those of infiniband/verbs.h; fields that nobody here uses are
// left to the padding. TestLayout compares them with the header.

// deviceAttr is struct ibv_device_attr.
type deviceAttr struct {
	_               structs.HostLayout
	firmware        [64]byte
	_               [2]uint64
	maxMRSize       uint64
	_               uint64
	vendorID        uint32
	_               [2]uint32
	maxQP           int32
	maxQPWR         int32
	_               [4]uint32
	maxCQE          int32
	_               [2]uint32
	maxQPRdAtom     int32
	_               [2]uint32
	maxQPInitRdAtom int32
	_               [67]byte
	ports           uint8
	_               [4]byte
}

// portAttr is struct ibv_port_attr.
type portAttr struct {
	_         structs.HostLayout
	state     uint32
	maxMTU    uint32
	activeMTU uint32
	gids      int32
	_         [18]byte
	lid       uint16
	_         [10]byte
	linkLayer uint8
	_         [5]byte
}

// qpCap is struct ibv_qp_cap.
type qpCap struct {
	_         structs.HostLayout
	maxSendWR uint32
	maxRecvWR uint32
	maxSend   uint32 // entries of a list
	maxRecv   uint32
	maxInline uint32
}

// qpInitAttr is struct ibv_qp_init_attr.
type qpInitAttr struct {
	_         structs.HostLayout
	context   uint64
	sendCQ    uintptr
	recvCQ    uintptr
	srq       uintptr
	cap       qpCap
	kind      uint32
	signalAll int32
	_         [4]byte
}

// ahAttr is struct ibv_ah_attr.
type ahAttr struct {
	_            structs.HostLayout
	dgid         nic.GID
	flowLabel    uint32
	sgidIndex    uint8
	hopLimit     uint8
	trafficClass uint8
	_            uint8
	dlid         uint16
	serviceLevel uint8
	srcPathBits  uint8
	staticRate   uint8
	isGlobal     uint8
	port         uint8
	_            uint8
}

// qpAttr is struct ibv_qp_attr.
type qpAttr struct {
	_               structs.HostLayout
	state           uint32
	_               uint32
	pathMTU         uint32
	_               [2]uint32
	rqPSN           uint32
	sqPSN           uint32
	destQPN         uint32
	access          uint32
	cap             qpCap
	ah              ahAttr
	altAH           ahAttr
	pkeyIndex       uint16
	_               [2]uint16
	maxRdAtomic     uint8
	maxDestRdAtomic uint8
	minRNRTimer     uint8
	port            uint8
	timeout         uint8
	retryCount      uint8
	rnrRetry        uint8
	_               [3]uint8
	_               [2]uint32
}

// sge is struct ibv_sge.
type sge struct {
	_      structs.HostLayout
	addr   uint64
	length uint32
	lkey   uint32
}

// sendWR is struct ibv_send_wr, of RDMA.
type sendWR struct {
	_          structs.HostLayout
	id         uint64
	next       uintptr
	list       uintptr
	count      int32
	opcode     uint32
	flags      uint32
	_          uint32
	remoteAddr uint64
	rkey       uint32
	_          [19]uint32
}

// wc is struct ibv_wc.
type wc struct {
	_         structs.HostLayout
	id        uint64
	status    uint32
	opcode    uint32
	vendorErr uint32
	_         [2]uint32
	qpn       uint32
	_         [4]uint32
}

// asyncEvent is struct ibv_async_event.
type asyncEvent struct {
	_       structs.HostLayout
	element uintptr
	kind    uint32
	_       uint32
}

// Offsets of what is read in the library's own structs.
const (
	contextPollCQ      = 96  // ibv_context.ops.poll_cq
	contextReqNotifyCQ = 104 // ibv_context.ops.req_notify_cq
	contextPostSend    = 208 // ibv_context.ops.post_send
	contextAsyncFD     = 268 // ibv_context.async_fd
	channelFD          = 8   // ibv_comp_channel.fd
	qpNum              = 52  // ibv_qp.qp_num
	mrLKey             = 36  // ibv_mr.lkey
	mrRKey             = 40  // ibv_mr.rkey
)

// Numbers of verbs.h.
const (
	qptRC     = 2
	wrWrite   = 0
	wrRead    = 4
	signaled  = 1 << 1
	portAlive = 4 // IBV_PORT_ACTIVE

	qpsReset, qpsInit, qpsRTR, qpsRTS, qpsErr = 0, 1, 2, 3, 6

	maskState           = 1 << 0
	maskAccess          = 1 << 3
	maskPKeyIndex       = 1 << 4
	maskPort            = 1 << 5
	maskAV              = 1 << 7
	maskPathMTU         = 1 << 8
	maskTimeout         = 1 << 9
	maskRetryCount      = 1 << 10
	maskRNRRetry        = 1 << 11
	maskRQPSN           = 1 << 12
	maskMaxRdAtomic     = 1 << 13
	maskMinRNRTimer     = 1 << 15
	maskSQPSN           = 1 << 16
	maskMaxDestRdAtomic = 1 << 17
	maskDestQPN         = 1 << 20

	eventCQErr, eventQPFatal, eventQPReqErr, eventQPAccessErr = 0, 1, 2, 3
	eventDeviceFatal, eventPortActive, eventPortErr           = 8, 9, 10
	eventLIDChange, eventGIDChange                            = 11, 18
)

const (
	pageBytes = 4096
	textBytes = 256
	chainWRs  = 256 // of one call of post_send
	pollWCs   = 64  // of one call of poll_cq
)

// frame is what slow calls need beside their integers. It is mapped, so that it
// neither moves nor is collected. One goroutine uses it at a time.
type frame struct {
	_      structs.HostLayout
	args   [8]uintptr
	word   uint64
	word2  uint64
	device deviceAttr
	port   portAttr
	_      [4]byte
	init   qpInitAttr
	qp     qpAttr
	event  asyncEvent
}

var _ [0]struct{} = [unsafe.Sizeof(frame{}) / (pageBytes + 1)]struct{}{}

// addr is where mapped memory is.
func addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

func (f *frame) wordAddr() uintptr { return addr(&f.word) }

// call calls p. It allocates nothing: args stays on the stack, and what the library
// gets is the frame's copy.
func (f *frame) call(p dl.Proc, args ...uintptr) uintptr {
	n := copy(f.args[:], args)
	return p.Call(f.args[:n]...)
}

// frames is a pool of frames. It keeps what it has mapped.
type frames struct {
	mu   sync.Mutex
	free []*frame
}

func (p *frames) get() (*frame, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		f := p.free[n-1]
		p.free = p.free[:n-1]
		return f, nil
	}
	return mapped[frame]()
}

func (p *frames) put(f *frame) {
	p.mu.Lock()
	p.free = append(p.free, f)
	p.mu.Unlock()
}

// unmap gives back what is mapped and not in use.
func (p *frames) unmap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.free {
		unmap(f)
	}
	p.free = nil
}

// mapped returns a T in memory of its own.
func mapped[T any]() (*T, error) {
	var t T
	n := int(unsafe.Sizeof(t)+pageBytes-1) / pageBytes * pageBytes
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("verbs: map %d bytes: %w", n, err)
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

// unmap gives back what mapped has mapped.
func unmap[T any](p *T) {
	n := (unsafe.Sizeof(*p) + pageBytes - 1) / pageBytes * pageBytes
	unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(p)), n))
}

// chain is memory for the work requests of one call of post_send.
type chain struct {
	_    structs.HostLayout
	args [3]uintptr
	bad  uintptr
	wrs  [chainWRs]sendWR
	list [chainWRs]sge
}

// fill writes request i, which is the last so far.
func (c *chain) fill(i int, id uint64, w *nic.WR) {
	s := &c.wrs[i]
	s.id, s.next, s.count, s.flags = id, 0, 0, 0
	s.opcode = wrWrite
	if w.Op == nic.OpRead {
		s.opcode = wrRead
	}
	if w.Signaled {
		s.flags = signaled
	}
	s.remoteAddr, s.rkey = w.RemoteAddr, w.RKey
	if w.Length > 0 { // some cards take a length of 0 for 2 GiB
		e := &c.list[i]
		e.addr, e.length, e.lkey = w.LocalAddr, w.Length, w.LKey
		s.list, s.count = addr(e), 1
	}
	if i > 0 {
		c.wrs[i-1].next = addr(s)
	}
}

// post hands n requests over and returns how many were taken.
func (c *chain) post(p dl.Proc, qp uintptr, n int) (taken int, r uintptr) {
	c.bad = 0
	c.args = [3]uintptr{qp, addr(&c.wrs[0]), addr(&c.bad)}
	r = p.Call(c.args[:]...)
	if int32(r) == 0 {
		return n, 0
	}
	for i := range n {
		if addr(&c.wrs[i]) == c.bad {
			return i, r
		}
	}
	return 0, r
}

// harvest is memory for the completions of one call of poll_cq.
type harvest struct {
	_    structs.HostLayout
	args [3]uintptr
	wcs  [pollWCs]wc
}

// poll asks for n completions and returns how many came, or a negative number.
func (h *harvest) poll(p dl.Proc, cq uintptr, n int) int {
	h.args = [3]uintptr{cq, uintptr(n), addr(&h.wcs)}
	return int(int32(p.Call(h.args[:]...)))
}

// notify asks for an event at the next completion.
func (h *harvest) notify(p dl.Proc, cq uintptr) uintptr {
	h.args[0], h.args[1] = cq, 0
	return p.Call(h.args[:2]...)
}

// at is memory of the library's.
func at[T any](base uintptr, offset int) T {
	return *(*T)(unsafe.Add(*(*unsafe.Pointer)(unsafe.Pointer(&base)), offset))
}

func wordAt(base uintptr, i int) uintptr { return at[uintptr](base, 8*i) }
func int32At(base uintptr) int32         { return at[int32](base, 0) }

// opsOf reads a context's functions.
func opsOf(context uintptr) ops {
	return ops{
		pollCQ:      dl.Proc(at[uintptr](context, contextPollCQ)),
		reqNotifyCQ: dl.Proc(at[uintptr](context, contextReqNotifyCQ)),
		postSend:    dl.Proc(at[uintptr](context, contextPostSend)),
	}
}

// cString copies a string of the library's, of which it believes the first 256 bytes.
func cString(base uintptr) string {
	if base == 0 {
		return ""
	}
	p := *(**byte)(unsafe.Pointer(&base))
	for n := range textBytes {
		if *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) == 0 {
			return string(unsafe.Slice(p, n))
		}
	}
	return string(unsafe.Slice(p, textBytes))
}
