package softnic

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/railhop/railhop/internal/nic"
)

// The protocol, little-endian. A connection opens with a hello and its reply.
// On a data connection batches flow from the requester, frames back.
//
//	hello  magic u32, version u16, kind u16, source gid [16], source port u16, zero u16,
//	       source qpn u32, target qpn u32, zero u32, name length u8, rail length u8,
//	       zero [6], name [64], rail [64]
//	reply  magic u32, version u16, verdict u16, name length u8, rail length u8,
//	       zero [6], name [64], rail [64]
//	batch  count u16, mark u16, zero u32, count operations, then the payload of its
//	       writes, back to back
//	op     kind u8, zero [3], rkey u32, address u64, length u32, zero u32
//	frame  kind u16, status or count u16, length u32, sequence u64, then the payload of
//	       that many reads, back to back
//
// A sequence counts operations from 0. An ack with n says that operations
// 0..n-1 are done; read data for n says the same, and brings operation n and those after
// it, count in all; a nak for n says the same, that n failed, and that the responder
// has left the memory for good.
const (
	helloMagic  = 0x4e534852 // "RHSN"
	wireVersion = 1
	helloBytes  = 176
	replyBytes  = 144

	kindData  = 1
	kindClose = 2

	verdictOK       = 0 // accepted; or closed
	verdictNotReady = 1 // try again
	verdictRefused  = 2 // never

	batchMark  = 0xb47c
	batchBytes = 8
	opBytes    = 24
	maxBatch   = 64 // operations
	batchHead  = batchBytes + maxBatch*opBytes

	batchPayload = 1 << 20 // bytes after which a batch takes no more operations

	frameBytes = 16
	frameAck   = 1
	frameData  = 2
	frameNak   = 3
)

var (
	errMalformed = errors.New("malformed message")
	errForeign   = errors.New("the peer is not a software NIC")
)

// end names one queue pair in the network.
type end struct {
	gid  nic.GID
	port uint16
	qpn  uint32
}

type hello struct {
	kind   uint16
	src    end
	dstQPN uint32
	name   string
	rail   string
}

type reply struct {
	version uint16
	verdict uint16
	name    string
	rail    string
}

func putNames(b []byte, name, rail string) {
	b[0] = byte(copy(b[8:8+maxName], name))
	b[1] = byte(copy(b[8+maxName:8+2*maxName], rail))
}

func getNames(b []byte) (name, rail string, err error) {
	n, r := int(b[0]), int(b[1])
	if n > maxName || r > maxName {
		return "", "", fmt.Errorf("names of %d and %d bytes: %w", n, r, errMalformed)
	}
	return string(b[8 : 8+n]), string(b[8+maxName : 8+maxName+r]), nil
}

func (h *hello) encode() []byte {
	b := make([]byte, helloBytes)
	le := binary.LittleEndian
	le.PutUint32(b[0:], helloMagic)
	le.PutUint16(b[4:], wireVersion)
	le.PutUint16(b[6:], h.kind)
	copy(b[8:24], h.src.gid[:])
	le.PutUint16(b[24:], h.src.port)
	le.PutUint32(b[28:], h.src.qpn)
	le.PutUint32(b[32:], h.dstQPN)
	putNames(b[40:], h.name, h.rail)
	return b
}

// parseHello reads a hello of helloBytes bytes.
func parseHello(b []byte) (hello, error) {
	le := binary.LittleEndian
	if len(b) != helloBytes || le.Uint32(b) != helloMagic {
		return hello{}, fmt.Errorf("hello: %w", errMalformed)
	}
	if v := le.Uint16(b[4:]); v != wireVersion {
		return hello{}, fmt.Errorf("hello of version %d, this is version %d: %w", v, wireVersion, errMalformed)
	}
	h := hello{kind: le.Uint16(b[6:]), dstQPN: le.Uint32(b[32:])}
	copy(h.src.gid[:], b[8:24])
	h.src.port, h.src.qpn = le.Uint16(b[24:]), le.Uint32(b[28:])
	if h.kind != kindData && h.kind != kindClose {
		return hello{}, fmt.Errorf("hello of kind %d: %w", h.kind, errMalformed)
	}
	var err error
	h.name, h.rail, err = getNames(b[40:])
	return h, err
}

func (r *reply) encode() []byte {
	b := make([]byte, replyBytes)
	le := binary.LittleEndian
	le.PutUint32(b[0:], helloMagic)
	le.PutUint16(b[4:], wireVersion)
	le.PutUint16(b[6:], r.verdict)
	putNames(b[8:], r.name, r.rail)
	return b
}

// parseReply reads a reply of replyBytes bytes. It fails with errForeign if
// what answered does not speak this protocol.
func parseReply(b []byte) (reply, error) {
	le := binary.LittleEndian
	if len(b) != replyBytes || le.Uint32(b) != helloMagic {
		return reply{}, errForeign
	}
	r := reply{version: le.Uint16(b[4:]), verdict: le.Uint16(b[6:])}
	if r.version != wireVersion {
		return r, fmt.Errorf("peer speaks version %d, this is version %d: %w", r.version, wireVersion, errMalformed)
	}
	var err error
	r.name, r.rail, err = getNames(b[8:])
	return r, err
}

// op is one operation as it travels.
type op struct {
	kind   nic.Op
	rkey   uint32
	addr   uint64
	length uint32
}

func putBatch(b []byte, count int) {
	le := binary.LittleEndian
	le.PutUint16(b[0:], uint16(count))
	le.PutUint16(b[2:], batchMark)
	le.PutUint32(b[4:], 0)
}

// parseBatch returns how many operations follow the batch header b.
func parseBatch(b []byte) (count int, err error) {
	le := binary.LittleEndian
	count = int(le.Uint16(b))
	if le.Uint16(b[2:]) != batchMark || le.Uint32(b[4:]) != 0 || count == 0 || count > maxBatch {
		return 0, fmt.Errorf("batch header % x: %w", b[:batchBytes], errMalformed)
	}
	return count, nil
}

func putOp(b []byte, o op) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], uint32(o.kind))
	le.PutUint32(b[4:], o.rkey)
	le.PutUint64(b[8:], o.addr)
	le.PutUint32(b[16:], o.length)
	le.PutUint32(b[20:], 0)
}

func parseOp(b []byte) (op, error) {
	le := binary.LittleEndian
	kind := le.Uint32(b)
	if (kind != uint32(nic.OpWrite) && kind != uint32(nic.OpRead)) || le.Uint32(b[20:]) != 0 {
		return op{}, fmt.Errorf("operation % x: %w", b[:opBytes], errMalformed)
	}
	return op{kind: nic.Op(kind), rkey: le.Uint32(b[4:]), addr: le.Uint64(b[8:]), length: le.Uint32(b[16:])}, nil
}

// frame is what the responder sends back.
type frame struct {
	kind   uint16
	status nic.Status // of a nak
	count  int        // of data
	length uint32     // of data, all together
	seq    uint64
}

func putFrame(b []byte, f frame) {
	le := binary.LittleEndian
	le.PutUint16(b[0:], f.kind)
	le.PutUint16(b[2:], uint16(f.status)|uint16(f.count))
	le.PutUint32(b[4:], f.length)
	le.PutUint64(b[8:], f.seq)
}

func parseFrame(b []byte) (frame, error) {
	le := binary.LittleEndian
	f := frame{kind: le.Uint16(b), length: le.Uint32(b[4:]), seq: le.Uint64(b[8:])}
	extra, ok := le.Uint16(b[2:]), false
	switch f.kind {
	case frameAck:
		ok = extra == 0 && f.length == 0
	case frameData:
		f.count = int(extra)
		ok = f.count > 0 && f.count <= maxBatch
	case frameNak:
		f.status = nic.Status(extra)
		ok = f.status != 0 && f.length == 0
	}
	if !ok {
		return frame{}, fmt.Errorf("frame % x: %w", b[:frameBytes], errMalformed)
	}
	return f, nil
}
