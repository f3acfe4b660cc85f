package xfer

import "fmt"

// Code is one of Mooncake's error numbers (error.h). It is an error, so that it
// can be wrapped with its cause and found again by [errors.As].
type Code int32

const (
	OK                   Code = 0
	ErrInvalidArgument   Code = -1
	ErrTooManyRequests   Code = -2
	ErrAddressNotFound   Code = -3
	ErrBatchBusy         Code = -4
	ErrDeviceNotFound    Code = -6
	ErrAddressOverlapped Code = -7
	ErrDNS               Code = -101
	ErrSocket            Code = -102
	ErrMalformedJSON     Code = -103
	ErrRejectedHandshake Code = -104
	ErrMetadata          Code = -200
	ErrEndpoint          Code = -201
	ErrContext           Code = -202
	ErrNUMA              Code = -300
	ErrClock             Code = -301
	ErrMemory            Code = -302
	ErrNotImplemented    Code = -303

	// ErrRevoked is railhop's own: the status of a completion whose piece its
	// sender took back (pxn.md 3.2).
	ErrRevoked Code = -1001
)

var codeNames = map[Code]string{
	OK:                   "ok",
	ErrInvalidArgument:   "invalid argument",
	ErrTooManyRequests:   "too many requests",
	ErrAddressNotFound:   "address not registered",
	ErrBatchBusy:         "batch busy",
	ErrDeviceNotFound:    "device not found",
	ErrAddressOverlapped: "address overlaps a registered buffer",
	ErrDNS:               "host name does not resolve",
	ErrSocket:            "connection failed",
	ErrMalformedJSON:     "malformed message",
	ErrRejectedHandshake: "handshake rejected",
	ErrMetadata:          "segment descriptor not available",
	ErrEndpoint:          "queue pair failed",
	ErrContext:           "NIC failed",
	ErrNUMA:              "NUMA failure",
	ErrClock:             "clock failure",
	ErrMemory:            "memory failure",
	ErrNotImplemented:    "not implemented",
	ErrRevoked:           "revoked",
}

func (c Code) Error() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return fmt.Sprintf("error %d", int32(c))
}
