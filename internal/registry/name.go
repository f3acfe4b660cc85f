package registry

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/railhop/railhop/internal/shmabi"
)

// entryName is the file name of an entry: four decimal numbers.
func entryName(id shmabi.Identity, epoch uint64) string {
	return fmt.Sprintf("%d.%d.%d.%d", id.UID, id.PID, id.StartTicks, epoch)
}

// parseName takes a file name apart. It accepts only what [entryName] makes:
// anything else is a foreign file.
func parseName(name string) (id shmabi.Identity, epoch uint64, ok bool) {
	part := strings.Split(name, ".")
	if len(part) != 4 {
		return id, 0, false
	}
	uid, err1 := strconv.ParseUint(part[0], 10, 32)
	pid, err2 := strconv.ParseInt(part[1], 10, 32)
	ticks, err3 := strconv.ParseUint(part[2], 10, 64)
	epoch, err4 := strconv.ParseUint(part[3], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || pid <= 0 || epoch == 0 {
		return id, 0, false
	}
	id = shmabi.Identity{UID: uint32(uid), PID: int32(pid), StartTicks: ticks}
	// Not +1, not 01.
	return id, epoch, entryName(id, epoch) == name
}
