package main

// #include <stdint.h>
// #include <stdlib.h>
// #include "transfer_engine_c.h"
// #include "railhop.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/railhop/railhop"
	"github.com/railhop/railhop/internal/capi"
	"github.com/railhop/railhop/internal/xfer"
)

func pieces(p *C.struct_railhop_pieces) capi.Pieces {
	return capi.Pieces{Local: numbers(p.local, p.n_local), Remote: numbers(p.remote, p.n_remote), Lengths: numbers(p.lengths, p.n_lengths)}
}

//export railhopGoTransfer
func railhopGoTransfer(id C.uint64_t, op C.int, target *C.char, p *C.struct_railhop_pieces, name, msg *C.char, why **C.char) C.int {
	return call(id, why, func(e *capi.Engine) error {
		o, err := opcode(op)
		if err != nil {
			return err
		}
		var note *railhop.Notification
		if name != nil {
			note = &railhop.Notification{Name: text(name), Msg: text(msg)}
		}
		return e.Transfer(o, text(target), pieces(p), note)
	})
}

//export railhopGoTransferOn
func railhopGoTransferOn(id, stream C.uint64_t, op C.int, target *C.char, p *C.struct_railhop_pieces, why **C.char) C.int {
	return call(id, why, func(e *capi.Engine) error {
		o, err := opcode(op)
		if err != nil {
			return err
		}
		return e.TransferOn(uint64(stream), o, text(target), pieces(p))
	})
}

//export railhopGoStart
func railhopGoStart(id C.uint64_t, op C.int, target *C.char, p *C.struct_railhop_pieces, why **C.char) C.uint64_t {
	var batch uint64
	call(id, why, func(e *capi.Engine) error {
		o, err := opcode(op)
		if err == nil {
			batch, err = e.Start(o, text(target), pieces(p))
		}
		return err
	})
	return C.uint64_t(batch)
}

//export railhopGoFinish
func railhopGoFinish(id C.uint64_t, batches *C.uint64_t, n C.size_t, why **C.char) C.int {
	return call(id, why, func(e *capi.Engine) error { return e.Finish(numbers(batches, n)) })
}

//export railhopGoCheck
func railhopGoCheck(id, batch C.uint64_t, why **C.char) C.int {
	var s railhop.Status
	rc := call(id, why, func(e *capi.Engine) (err error) {
		s, err = e.Check(uint64(batch))
		return err
	})
	switch {
	case rc != 0 && s == railhop.Timeout:
		return -2
	case rc != 0:
		return -1
	case s == railhop.Completed:
		return 1
	}
	return 0
}

// batchCall is call for functions of batches, whose codes are others.
func batchCall(id C.uint64_t, f func(e *capi.Engine) error) (rc C.int) {
	defer rescue(&rc, 1)
	e, err := library.Engine(uint64(id))
	if err == nil {
		err = f(e)
	}
	return C.int(capi.StatusCode(err))
}

//export railhopGoNewBatch
func railhopGoNewBatch(id C.uint64_t, capacity C.size_t) C.uint64_t {
	var batch uint64
	rc := batchCall(id, func(e *capi.Engine) (err error) {
		batch, err = e.NewBatch(uint64(capacity))
		return err
	})
	if rc != 0 {
		return C.INVALID_BATCH
	}
	return C.uint64_t(batch)
}

//export railhopGoSubmit
func railhopGoSubmit(id, batch C.uint64_t, entries *C.struct_transfer_request, n C.size_t, name, msg *C.char) C.int {
	return batchCall(id, func(e *capi.Engine) error {
		reqs := make([]railhop.Request, n)
		for i, r := range unsafe.Slice(entries, int(n)) {
			op, err := opcode(r.opcode)
			if err != nil {
				return err
			}
			if r.target_id < 0 {
				return fmt.Errorf("railhop: segment %d: %w", int32(r.target_id), xfer.ErrInvalidArgument)
			}
			reqs[i] = railhop.Request{
				Op: op, Source: uint64(uintptr(r.source)), Target: railhop.SegmentID(r.target_id),
				TargetAddr: uint64(r.target_offset), Length: uint64(r.length),
			}
		}
		var note *railhop.Notification
		if name != nil {
			note = &railhop.Notification{Name: text(name), Msg: text(msg)}
		}
		return e.Submit(uint64(batch), reqs, note)
	})
}

//export railhopGoStatus
func railhopGoStatus(id, batch C.uint64_t, task C.size_t, status *C.struct_transfer_status) C.int {
	return batchCall(id, func(e *capi.Engine) error {
		r, err := e.Status(uint64(batch), uint64(task))
		if err == nil {
			status.status, status.transferred_bytes = C.int(r.Status), C.uint64_t(r.Transferred)
		}
		return err
	})
}

//export railhopGoFreeBatch
func railhopGoFreeBatch(id, batch C.uint64_t) C.int {
	return batchCall(id, func(e *capi.Engine) error { return e.FreeBatch(uint64(batch)) })
}

//export railhopGoNotify
func railhopGoNotify(id, segment C.uint64_t, name, msg *C.char) C.int {
	return call(id, nil, func(e *capi.Engine) error {
		return e.Notify(uint64(segment), railhop.Notification{Name: text(name), Msg: text(msg)})
	})
}

//export railhopGoNotifications
func railhopGoNotifications(id C.uint64_t, size *C.int) (list *C.notify_msg_t) {
	var notes []railhop.Notification
	rc := call(id, nil, func(e *capi.Engine) (err error) {
		notes, err = e.Notifications()
		return err
	})
	*size = 0
	if rc != 0 || len(notes) == 0 {
		return nil
	}
	p := C.malloc(C.size_t(len(notes)) * C.size_t(unsafe.Sizeof(C.notify_msg_t{})))
	for i, n := range notes {
		to := &unsafe.Slice((*C.notify_msg_t)(p), len(notes))[i]
		to.name, to.msg = C.CString(n.Name), C.CString(n.Msg)
	}
	*size = C.int(len(notes))
	return (*C.notify_msg_t)(p)
}
