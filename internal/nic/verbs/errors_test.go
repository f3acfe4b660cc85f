package verbs

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/railhop/railhop/internal/gpu"
)

func TestCausesOfRegistration(t *testing.T) {
	unsupported := fmt.Errorf("no: %w", errors.ErrUnsupported)
	for _, tc := range []struct {
		name string
		c    cause
		want string
	}{
		{"memlock", cause{errno: syscall.ENOMEM, length: 1 << 30, limit: 8 << 20}, "8388608 bytes: raise it with ulimit -l"},
		{"memlock as another error", cause{errno: syscall.EAGAIN, length: 1 << 30, limit: 65536}, "ulimit -l"},
		{"no memory", cause{errno: syscall.ENOMEM, length: 1 << 30, limit: math.MaxUint64}, "no memory for it"},
		{"not mapped", cause{errno: syscall.EFAULT, length: 4096, limit: math.MaxUint64}, "not all of it is mapped"},
		{"neither", cause{errno: syscall.EFAULT, kind: gpu.DeviceMemory, dmabuf: unsupported}, "as a dma-buf: no: unsupported operation; by nvidia-peermem: the kernel module is not loaded, try modprobe nvidia-peermem"},
		{"VMM memory", cause{errno: syscall.EFAULT, kind: gpu.DeviceMemory, peermem: true, way: ByPeermem}, "not tried, for WITH_NVIDIA_PEERMEM=1; by nvidia-peermem: it does not take it; memory of cuMemCreate"},
		{"dma-buf alone", cause{kind: gpu.DeviceMemory, peermem: true, way: ByDMABuf, dmabuf: errors.New("the card does not take it")}, "as a dma-buf: the card does not take it; by nvidia-peermem it was not tried, for WITH_NVIDIA_PEERMEM=0"},
		{"managed", cause{errno: syscall.EFAULT, kind: gpu.ManagedMemory}, "managed GPU memory"},
		{"else", cause{errno: syscall.EINVAL}, "the card does not take it"},
	} {
		if got := tc.c.words(); !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q in it", tc.name, got, tc.want)
		}
	}
}

func TestCode(t *testing.T) {
	minus := func(n int32) uintptr { return uintptr(uint32(-n)) }
	for r, want := range map[uintptr]syscall.Errno{0: 0, 22: syscall.EINVAL, minus(22): syscall.EINVAL, minus(1): syscall.EIO} {
		if got := code(r); got != want {
			t.Errorf("%#x: %v, want %v", r, got, want)
		}
	}
}

func ms(n int) time.Duration { return min(time.Duration(n), 1<<30) * time.Millisecond }

func TestTimeouts(t *testing.T) {
	for d, want := range map[int]uint8{0: 14, 67: 14, 68: 15, 5: 11, 500: 17, 1 << 40: 31} {
		if got := ackTimeout(ms(d)); got != want {
			t.Errorf("%d ms: 2^%d, want 2^%d", d, got, want)
		}
	}
	for n, want := range map[int]uint32{0: 1, 256: 1, 512: 2, 1024: 3, 1500: 3, 2048: 4, 4096: 5, 9000: 5} {
		if got := mtuEnum(n); got != want {
			t.Errorf("MTU %d: %d, want %d", n, got, want)
		}
	}
	if mtuBytes(5) != 4096 || mtuBytes(0) != 0 || mtuBytes(6) != 0 {
		t.Error("MTUs in bytes are wrong")
	}
}
