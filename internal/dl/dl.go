// Package dl loads shared libraries and finds functions in them, without cgo.
//
// It owns the way from a library's name to something that can be called, and
// nothing of what a library means: prototypes, structs and error numbers belong
// to whoever binds it. A library stays loaded until the process ends, since
// drivers start threads of their own and cannot be unloaded.
//
// Threads: all may be used by any. A call runs on the calling goroutine's OS
// thread, as a cgo call would.
package dl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ebitengine/purego"
)

// Library finds functions by name. It is an interface so that a table can be
// tested without its library.
type Library interface {
	// Symbol returns the address of a function, and false if there is none.
	Symbol(name string) (addr uintptr, ok bool)
}

// Open loads the first of names that can be: file names for the loader's search
// path, or paths. If none can be, the error wraps [errors.ErrUnsupported] and has
// the loader's words.
func Open(names ...string) (Library, error) {
	var causes []string
	for _, name := range names {
		// Now, not lazily: a library that lacks something fails here. Local: its
		// names do not take the place of others'.
		h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			return handle(h), nil
		}
		causes = append(causes, err.Error())
	}
	return nil, fmt.Errorf("dl: open %s: %s: %w", strings.Join(names, " or "), strings.Join(causes, "; "), errors.ErrUnsupported)
}

type handle uintptr

func (h handle) Symbol(name string) (uintptr, bool) {
	addr, err := purego.Dlsym(uintptr(h), name)
	return addr, err == nil && addr != 0
}

// MaxArgs is how many arguments a [Proc] takes at most.
const MaxArgs = 32

// Proc is a C function, called with integers and addresses. The zero value is none.
type Proc uintptr

// Call calls the function, and returns what it returned in the first register of
// results: of a C int, the lower half counts. With a slice that the caller uses
// again it allocates nothing; arguments that are listed cost an allocation.
// More than MaxArgs arguments, or a Proc that is none, panic.
//
// The first arguments go into registers, as many as the platform has for
// integers, and the rest on the stack. An address must be of memory that
// neither moves nor is collected.
func (p Proc) Call(args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(uintptr(p), args...)
	return r
}

// Found reports whether there is a function.
func (p Proc) Found() bool { return p != 0 }

// Symbol is a line of a table: what to look for, and where to put it.
type Symbol struct {
	// Names of the function; the newest, which is preferred, first.
	Names []string
	// Target is a *[Proc], for the data path and for odd calling conventions, or
	// a pointer to a variable of a function type, which costs a quarter of a
	// microsecond and some garbage at each call.
	Target any
	// Optional leaves Target as it is if there is no such function.
	Optional bool
	// Since is the version of the library from which on the function may be used,
	// in the library's own counting. An older one counts as not having it.
	Since int
}

// Bind fills the targets of table from lib, whose version is given. It fails with
// an error that names all required functions which are not there, and then none
// of the targets may be used.
func Bind(lib Library, version int, table []Symbol) error {
	var missing []string
	for _, s := range table {
		addr := uintptr(0)
		if version >= s.Since {
			for _, name := range s.Names {
				if a, ok := lib.Symbol(name); ok {
					addr = a
					break
				}
			}
		}
		switch {
		case addr == 0 && s.Optional:
		case addr == 0 && version < s.Since:
			missing = append(missing, fmt.Sprintf("%s (needs version %d)", s.Names[0], s.Since))
		case addr == 0:
			missing = append(missing, strings.Join(s.Names, " or "))
		default:
			if p, ok := s.Target.(*Proc); ok {
				*p = Proc(addr)
			} else {
				purego.RegisterFunc(s.Target, addr)
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("dl: version %d of the library lacks %s: %w", version, strings.Join(missing, ", "), errors.ErrUnsupported)
	}
	return nil
}
