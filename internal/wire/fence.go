package wire

import (
	"math"
	"strconv"
)

// AppendFenceRequest appends q's JSON.
func AppendFenceRequest(dst []byte, q *FenceRequest) []byte {
	dst = append(dst, `{"railhop_fence":{"epoch":`...)
	dst = appendHex16(dst, q.Epoch)
	dst = append(dst, `,"nonce":`...)
	dst = appendString(dst, q.Nonce)
	return append(dst, "}}\n"...)
}

// DecodeFenceRequest reads a fence request. It fails with a [*SyntaxError] or a
// [*FieldError]; epoch 0 is one.
func DecodeFenceRequest(b []byte) (FenceRequest, error) {
	f, err := decodeFence("fence request", b)
	if err != nil {
		return FenceRequest{}, err
	}
	return FenceRequest{Epoch: f.Epoch, Nonce: f.Nonce}, nil
}

// AppendFenceReply appends p's JSON.
func AppendFenceReply(dst []byte, p *FenceReply) []byte {
	dst = append(dst, `{"railhop_fence":{"closed":`...)
	dst = strconv.AppendUint(dst, uint64(max(p.Closed, 0)), 10)
	dst = append(dst, `,"epoch":`...)
	dst = appendHex16(dst, p.Epoch)
	dst = append(dst, `,"error":`...)
	dst = appendString(dst, p.Error)
	dst = append(dst, `,"nonce":`...)
	dst = appendString(dst, p.Nonce)
	return append(dst, "}}\n"...)
}

// DecodeFenceReply reads a fence reply. It fails with a [*SyntaxError] or a
// [*FieldError]; epoch 0 is one.
func DecodeFenceReply(b []byte) (FenceReply, error) {
	return decodeFence("fence reply", b)
}

func decodeFence(message string, b []byte) (FenceReply, error) {
	var f FenceReply
	r := &reader{message: message, b: b}
	err := r.object(func(name string) error {
		if name != "railhop_fence" {
			return r.skip()
		}
		f = FenceReply{}
		return r.object(func(name string) (err error) {
			switch name {
			case "closed":
				var n uint64
				n, err = r.unsigned(math.MaxInt32)
				f.Closed = int(n)
			case "epoch":
				f.Epoch, err = r.hex16()
			case "error":
				f.Error, err = r.text()
			case "nonce":
				f.Nonce, err = r.text()
			default:
				err = r.skip()
			}
			return err
		})
	})
	if err != nil {
		return FenceReply{}, err
	}
	if f.Epoch == 0 {
		return FenceReply{}, &FieldError{Message: message, Member: "railhop_fence.epoch", Have: "missing or 0", Want: "16 hex digits, not all 0"}
	}
	return f, nil
}
