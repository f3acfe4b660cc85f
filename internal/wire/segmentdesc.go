package wire

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
)

// Protocols of a [SegmentDesc] that are understood.
const (
	ProtocolRDMA = "rdma"
	ProtocolTCP  = "tcp"
)

// AppendSegmentDesc appends d's JSON.
func AppendSegmentDesc(dst []byte, d *SegmentDesc) []byte {
	rdma := d.Protocol != ProtocolTCP
	dst = append(dst, `{"buffers":[`...)
	for i := range d.Buffers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendBuffer(dst, &d.Buffers[i], rdma)
	}
	dst = append(dst, ']')
	if rdma {
		dst = append(dst, `,"devices":[`...)
		for i, dev := range d.Devices {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"gid":`...)
			dst = appendString(dst, dev.GID)
			dst = append(dst, `,"lid":`...)
			dst = strconv.AppendUint(dst, uint64(dev.LID), 10)
			dst = append(dst, `,"name":`...)
			dst = appendString(dst, dev.Name)
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
	}
	dst = append(dst, `,"name":`...)
	dst = appendString(dst, d.Name)
	if rdma {
		dst = append(dst, `,"priority_matrix":`...)
		dst = AppendMatrix(dst, d.PriorityMatrix)
	}
	dst = append(dst, `,"protocol":`...)
	dst = appendString(dst, d.Protocol)
	if d.FenceVersion != 0 || d.TCPProves != 0 {
		dst = append(dst, `,"railhop":{`...)
		comma := ""
		for _, v := range [...]struct {
			name  string
			value int
		}{{"fence", d.FenceVersion}, {"tcp", d.TCPProves}} {
			if v.value != 0 {
				dst = append(append(dst, comma...), '"')
				dst = append(append(dst, v.name...), `":`...)
				dst = strconv.AppendInt(dst, int64(v.value), 10)
				comma = ","
			}
		}
		dst = append(dst, '}')
	}
	if d.RDMAServerName != "" {
		dst = append(dst, `,"rdma_server_name":`...)
		dst = appendString(dst, d.RDMAServerName)
	}
	if d.TCPDataHost != "" {
		dst = append(dst, `,"tcp_data_host":`...)
		dst = appendString(dst, d.TCPDataHost)
	}
	dst = append(dst, `,"tcp_data_port":`...)
	dst = strconv.AppendInt(dst, int64(d.TCPDataPort), 10)
	dst = append(dst, `,"tcp_proto_version":`...)
	dst = strconv.AppendInt(dst, int64(max(d.TCPProtoVersion, 1)), 10)
	dst = append(dst, `,"timestamp":`...)
	dst = appendString(dst, d.Timestamp)
	return append(dst, "}\n"...)
}

// AppendBuffer appends the JSON of one of a descriptor's buffers. Only with keys
// does it have them.
func AppendBuffer(dst []byte, b *Buffer, keys bool) []byte {
	dst = append(dst, `{"addr":`...)
	dst = strconv.AppendUint(dst, b.Addr, 10)
	dst = append(dst, `,"length":`...)
	dst = strconv.AppendUint(dst, b.Length, 10)
	if keys {
		dst = append(dst, `,"lkey":`...)
		dst = appendUint32s(dst, b.LKey)
	}
	dst = append(dst, `,"name":`...)
	dst = appendString(dst, b.Name)
	if keys {
		dst = append(dst, `,"rkey":`...)
		dst = appendUint32s(dst, b.RKey)
	}
	return append(dst, '}')
}

// AppendMatrix appends a priority matrix's JSON, without a newline.
func AppendMatrix(dst []byte, matrix map[string][2][]string) []byte {
	dst = append(dst, '{')
	for i, location := range slices.Sorted(maps.Keys(matrix)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, location)
		dst = append(dst, ':', '[')
		dst = appendStrings(dst, matrix[location][0])
		dst = append(dst, ',')
		dst = appendStrings(dst, matrix[location][1])
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

// DecodeMatrix reads a priority matrix that stands alone, such as a topology
// file. It fails with a [*SyntaxError] or a [*FieldError].
func DecodeMatrix(b []byte) (map[string][2][]string, error) {
	r := &reader{message: "priority matrix", b: b}
	return r.matrix()
}

// DecodeSegmentDesc reads a descriptor and refuses what Mooncake refuses; what
// it returns is sound in itself. It fails with [ErrNoSegment], a [*SyntaxError]
// or a [*FieldError].
func DecodeSegmentDesc(b []byte) (*SegmentDesc, error) {
	r := &reader{message: "segment descriptor", b: b}
	if r.peek() == 'n' {
		if err := r.null(); err != nil {
			return nil, err
		}
		return nil, ErrNoSegment
	}
	// What the other members must hold depends on the protocol, which comes
	// late in the text.
	protocol, err := r.protocol()
	if err != nil {
		return nil, err
	}
	d := &SegmentDesc{TCPProtoVersion: 1}
	rdma := protocol == ProtocolRDMA
	*r = reader{message: r.message, b: b}
	err = r.object(func(name string) (err error) {
		var n uint64
		switch {
		case name == "name":
			d.Name, err = r.text()
		case name == "protocol":
			d.Protocol, err = r.text()
		case name == "tcp_data_host":
			d.TCPDataHost, err = r.text()
		case name == "tcp_data_port":
			n, err = r.unsigned(math.MaxUint16)
			d.TCPDataPort = int(n)
		case name == "tcp_proto_version":
			n, err = r.unsigned(math.MaxInt32)
			d.TCPProtoVersion = max(int(n), 1)
		case name == "timestamp":
			d.Timestamp, err = r.text()
		case name == "rdma_server_name":
			d.RDMAServerName, err = r.text()
		case name == "railhop":
			d.FenceVersion, d.TCPProves, err = r.ours()
		case name == "buffers":
			d.Buffers, err = r.buffers(rdma)
		case name == "devices" && rdma:
			d.Devices, err = r.devices()
		case name == "priority_matrix" && rdma:
			err = r.matrixOf(d)
		default:
			err = r.skip()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if rdma {
		if d.PriorityMatrix == nil && d.MatrixProblem == "" {
			d.MatrixProblem = "priority_matrix is missing"
		}
		if err := r.checkKeys(d); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (r *reader) protocol() (string, error) {
	protocol := ""
	err := r.object(func(name string) (err error) {
		if name != "protocol" {
			return r.skip()
		}
		protocol, err = r.text()
		return err
	})
	if err == nil && protocol != ProtocolRDMA && protocol != ProtocolTCP {
		err = &FieldError{Message: r.message, Member: "protocol", Have: strconv.Quote(protocol), Want: `"rdma" or "tcp"`}
	}
	return protocol, err
}

// ours reads {"fence": n, "tcp": n}. A shape that is not ours offers nothing.
func (r *reader) ours() (fence, tcp int, err error) {
	if r.peek() != '{' {
		return 0, 0, r.skip()
	}
	err = r.object(func(name string) error {
		at := map[string]*int{"fence": &fence, "tcp": &tcp}[name]
		if c := r.peek(); at == nil || c < '0' || c > '9' {
			return r.skip()
		}
		raw, err := r.number()
		if v, ok := integer(raw); ok && v <= math.MaxInt32 {
			*at = int(v)
		}
		return err
	})
	return fence, tcp, err
}

func (r *reader) buffers(rdma bool) ([]Buffer, error) {
	var all []Buffer
	location := "" // mostly that of the buffer before
	err := r.array(func(i int) error {
		var b Buffer
		err := r.object(func(name string) (err error) {
			switch {
			case name == "name":
				b.Name, err = r.text()
			case name == "addr":
				b.Addr, err = r.unsigned(math.MaxUint64)
			case name == "length":
				b.Length, err = r.unsigned(math.MaxUint64)
			case name == "lkey" && rdma:
				b.LKey, err = r.uint32s(nil, math.MaxInt)
			case name == "rkey" && rdma:
				b.RKey, err = r.uint32s(nil, math.MaxInt)
			default:
				err = r.skip()
			}
			return err
		})
		if err == nil {
			err = r.checkBuffer(&b)
		}
		if err != nil {
			return err
		}
		if b.Name == location {
			b.Name = location
		}
		location = b.Name
		all = append(all, b)
		return nil
	})
	return all, err
}

func (r *reader) checkBuffer(b *Buffer) error {
	bad := func(member, have, want string) error {
		return &FieldError{Message: r.message, Member: member, Have: have, Want: want}
	}
	switch {
	case b.Name == "":
		return bad("name", "empty", "a name")
	case b.Addr == 0:
		return bad("addr", "0", "an address")
	case b.Length == 0:
		return bad("length", "0", "a length")
	case b.Addr+b.Length < b.Addr:
		return bad("length", strconv.FormatUint(b.Length, 10), fmt.Sprintf("an end below 2^64 from address %#x", b.Addr))
	}
	return nil
}

func (r *reader) devices() ([]Device, error) {
	var all []Device
	err := r.array(func(i int) error {
		var dev Device
		err := r.object(func(name string) (err error) {
			switch name {
			case "name":
				dev.Name, err = r.text()
			case "gid":
				dev.GID, err = r.text()
			case "lid":
				dev.LID, err = r.lid()
			default:
				err = r.skip()
			}
			return err
		})
		switch {
		case err != nil:
			return err
		case dev.Name == "":
			return &FieldError{Message: r.message, Member: "name", Have: "empty", Want: "a device's name"}
		case dev.GID == "":
			return &FieldError{Message: r.message, Member: "gid", Have: "empty", Want: "a GID"}
		}
		all = append(all, dev)
		return nil
	})
	return all, err
}

// checkKeys refuses buffers whose keys do not fit the devices. No keys at all
// are allowed: the buffer is not remotely accessible.
func (r *reader) checkKeys(d *SegmentDesc) error {
	for i := range d.Buffers {
		b := &d.Buffers[i]
		if n := len(b.RKey); n > 0 && (n != len(b.LKey) || n != len(d.Devices)) {
			return &FieldError{
				Message: r.message, Member: "buffers" + index(i) + ".rkey",
				Have: fmt.Sprintf("%d keys, beside %d in lkey", n, len(b.LKey)),
				Want: fmt.Sprintf("%d in each, one a device, or none in rkey", len(d.Devices)),
			}
		}
	}
	return nil
}

// matrixOf reads the matrix of d, or notes why it cannot be used.
func (r *reader) matrixOf(d *SegmentDesc) error {
	r.peek()
	start := r.pos
	matrix, err := r.matrix()
	d.PriorityMatrix, d.MatrixProblem = matrix, ""
	var fe *FieldError
	if errors.As(err, &fe) {
		d.PriorityMatrix, d.MatrixProblem = nil, within(fe, "priority_matrix").Error()
		r.pos = start
		return r.skip()
	}
	return err
}

func (r *reader) matrix() (map[string][2][]string, error) {
	if r.peek() != '{' {
		return nil, r.refuse(r.pos, "an object")
	}
	matrix := make(map[string][2][]string)
	err := r.object(func(location string) error {
		r.peek()
		start := r.pos
		var lists [2][]string
		n := 0
		err := r.array(func(i int) (err error) {
			if n++; n > len(lists) {
				return r.skip()
			}
			lists[i], err = r.names()
			return err
		})
		if err == nil && n != len(lists) {
			err = r.refuse(start, "two arrays of device names")
		}
		matrix[location] = lists
		return err
	})
	if err != nil {
		return nil, err
	}
	return matrix, nil
}

func (r *reader) names() ([]string, error) {
	var all []string
	err := r.array(func(int) error {
		name, err := r.text()
		all = append(all, name)
		return err
	})
	return all, err
}
