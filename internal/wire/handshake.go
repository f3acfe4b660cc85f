package wire

import (
	"math"
	"strconv"
)

// MaxQPs is how many queue pairs a handshake may list.
const MaxQPs = 4096

// AppendHandShake appends h's JSON, with the newline that ends Mooncake's.
func AppendHandShake(dst []byte, h *HandShake) []byte {
	dst = append(dst, `{"local_gid":`...)
	dst = appendString(dst, h.LocalGID)
	dst = append(dst, `,"local_lid":`...)
	dst = strconv.AppendUint(dst, uint64(h.LocalLID), 10)
	dst = append(dst, `,"local_nic_path":`...)
	dst = appendString(dst, h.LocalNICPath)
	dst = append(dst, `,"payload":`...)
	dst = appendString(dst, h.Payload)
	dst = append(dst, `,"peer_nic_path":`...)
	dst = appendString(dst, h.PeerNICPath)
	dst = append(dst, `,"qp_num":`...)
	dst = appendUint32s(dst, h.QPNum)
	if h.RelayEpoch != 0 {
		dst = append(dst, `,"railhop_relay":`...)
		dst = appendHex16(dst, h.RelayEpoch)
	}
	if h.ReadyAck != nil {
		dst = append(dst, `,"ready_ack":`...)
		dst = strconv.AppendBool(dst, *h.ReadyAck)
	}
	dst = append(dst, `,"reply_msg":`...)
	dst = appendString(dst, h.ReplyMsg)
	return append(dst, "}\n"...)
}

// DecodeHandShake reads a handshake. It fails with a [*SyntaxError] or a
// [*FieldError].
func DecodeHandShake(b []byte) (HandShake, error) {
	var h HandShake
	r := &reader{message: "handshake", b: b}
	err := r.object(func(name string) (err error) {
		switch name {
		case "local_gid":
			h.LocalGID, err = r.text()
		case "local_lid":
			h.LocalLID, err = r.lid()
		case "local_nic_path":
			h.LocalNICPath, err = r.text()
		case "payload":
			h.Payload, err = r.text()
		case "peer_nic_path":
			h.PeerNICPath, err = r.text()
		case "qp_num":
			h.QPNum, err = r.uint32s(nil, MaxQPs)
		case "railhop_relay":
			h.RelayEpoch, err = r.hex16()
		case "ready_ack":
			// Its presence counts, whatever its type.
			ack := r.literal("true")
			h.ReadyAck = &ack
			if !ack {
				err = r.skip()
			}
		case "reply_msg":
			h.ReplyMsg, err = r.text()
		default:
			err = r.skip()
		}
		return err
	})
	if err != nil {
		return HandShake{}, err
	}
	return h, nil
}

// lid reads a port's LID, and 0 from anything that is not an integer, as
// Mooncake does.
func (r *reader) lid() (uint16, error) {
	if c := r.peek(); c != '-' && (c < '0' || c > '9') {
		return 0, r.skip()
	}
	v, err := r.unsigned(math.MaxUint16)
	return uint16(v), err
}

// uint32s appends an array's elements to dst, at most most.
func (r *reader) uint32s(dst []uint32, most int) ([]uint32, error) {
	r.peek()
	start := r.pos
	err := r.array(func(i int) error {
		if i == most {
			return r.refuse(start, "at most "+strconv.Itoa(most)+" elements")
		}
		v, err := r.unsigned(math.MaxUint32)
		dst = append(dst, uint32(v))
		return err
	})
	return dst, err
}
