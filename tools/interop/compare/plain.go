package main

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const plainCall = 1 << 20 // bytes that a system call writes or reads at most

// plain is a process that only writes and reads a socket: how many bytes, the bytes,
// and one byte back. No engine is faster.
func plain() error {
	buf := make([]byte, size)
	for i := 0; i < size; i += 4096 {
		buf[i] = 1 // so that the pages are there
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			go take(nc, buf)
		}
	}()
	var nc net.Conn
	return answerAll(message{Name: ln.Addr().String()}, func(line []byte) ([]float64, error) {
		var (
			verb, target string
			remote       uint64
			w            workload
		)
		args := []any{&verb, &target, &remote, &w.count, &w.length, &w.repeat}
		if err := json.Unmarshal(line, &args); err != nil {
			return nil, err
		}
		if nc == nil {
			if nc, err = net.Dial("tcp", target); err != nil {
				return nil, err
			}
			unpaced(nc.(*net.TCPConn))
		}
		times := make([]float64, w.repeat)
		for i := range times {
			start := time.Now()
			if err := give(nc, buf[:w.count*w.length]); err != nil {
				return nil, err
			}
			times[i] = time.Since(start).Seconds()
		}
		return times, nil
	})
}

// unpaced is what path/tcp does with a connection on the loopback.
func unpaced(nc *net.TCPConn) {
	if raw, err := nc.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") })
	}
}

func give(nc net.Conn, b []byte) error {
	var head [8]byte
	binary.LittleEndian.PutUint64(head[:], uint64(len(b)))
	vs := net.Buffers{head[:], b[:min(len(b), plainCall)]}
	if _, err := vs.WriteTo(nc); err != nil {
		return err
	}
	for at := plainCall; at < len(b); at += plainCall {
		if _, err := nc.Write(b[at:min(at+plainCall, len(b))]); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(nc, head[:1])
	return err
}

func take(nc net.Conn, buf []byte) {
	defer nc.Close()
	var head [8]byte
	for {
		if _, err := io.ReadFull(nc, head[:]); err != nil {
			return
		}
		n := int(binary.LittleEndian.Uint64(head[:]))
		for at := 0; at < n; {
			k, err := nc.Read(buf[at:min(n, at+plainCall)])
			if err != nil {
				return
			}
			at += k
		}
		if _, err := nc.Write(head[:1]); err != nil {
			return
		}
	}
}
