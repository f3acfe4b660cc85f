package softnic_test

import (
	"net/netip"
	"testing"

	"github.com/railhop/railhop/internal/nic/nictest"
	"github.com/railhop/railhop/internal/nic/softnic"
)

var loopback = netip.MustParseAddr("127.0.0.1")

func provider(t testing.TB, devs ...softnic.DeviceConfig) *softnic.Provider {
	t.Helper()
	p, err := softnic.New(softnic.Options{Devices: devs})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	t.Run("two devices", func(t *testing.T) {
		nictest.Run(t, func(t testing.TB) nictest.Setup {
			return nictest.Setup{
				Provider: provider(t, softnic.DeviceConfig{Name: "soft0", Addr: loopback}, softnic.DeviceConfig{Name: "soft1", Addr: loopback}),
				DevA:     "soft0",
				DevB:     "soft1",
				Alloc:    alloc,
			}
		})
	})
	t.Run("one device", func(t *testing.T) {
		nictest.Run(t, func(t testing.TB) nictest.Setup {
			return nictest.Setup{
				Provider: provider(t, softnic.DeviceConfig{Name: "soft0", Addr: loopback}),
				DevA:     "soft0",
				DevB:     "soft0",
				Alloc:    alloc,
			}
		})
	})
}
