package registry

import (
	"errors"
	"fmt"
	"os"
)

// offMarker reports whether ranks to come start switched off.
func (r *Registry) offMarker() (bool, error) {
	_, err := r.dir.Lstat(offName)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("registry: %w", err)
	}
	return true, nil
}
