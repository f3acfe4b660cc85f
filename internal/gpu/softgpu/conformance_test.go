package softgpu

import (
	"fmt"
	"os"
	"testing"

	"github.com/railhop/railhop/internal/gpu"
	"github.com/railhop/railhop/internal/gpu/gputest"
)

func TestMain(m *testing.M) {
	gputest.Child(func() (gpu.Provider, error) { return New(Options{Devices: Uniform(2)}) })
	if len(os.Args) == 2 && os.Args[1] == ownerArg {
		if err := serveOwner(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func setup(p *Provider) gputest.Setup {
	return gputest.Setup{
		Provider: p,
		Caller: func(d gpu.Device) (uint64, gpu.Stream, error) {
			return d.(*Device).NewUserStream()
		},
		Capturing: func(d gpu.Device) (uint64, func(), error) {
			handle, s, err := d.(*Device).NewUserStream()
			if err != nil {
				return 0, nil, err
			}
			s.SetCapturing(true)
			return handle, func() { s.Close() }, nil
		},
		Live: func(d gpu.Device) string {
			if c := d.(*Device).Counts(); c != (Counts{}) {
				return fmt.Sprintf("%+v", c)
			}
			return ""
		},
	}
}

func TestConformance(t *testing.T) {
	p, err := New(Options{Devices: Uniform(2)})
	if err != nil {
		t.Fatal(err)
	}
	gputest.Run(t, setup(p))
}

func TestConformanceWithoutStreamMemOps(t *testing.T) {
	devices, err := ParseDevices("0000:a1:00.0,memops=off")
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Devices: devices})
	if err != nil {
		t.Fatal(err)
	}
	gputest.Run(t, setup(p))
}
