package registry

import "fmt"

// Cause is why a file with our kind of name is not a peer.
type Cause uint8

// The causes, in the order in which they are looked for.
const (
	Unreadable   Cause = iota + 1 // it cannot be opened, read or mapped
	Symlink                       // a symbolic link
	NotRegular                    // a directory, pipe, socket or device
	WrongOwner                    // the file is another uid's
	WrongMode                     // not 0600
	HardLinked                    // it has a second name
	Empty                         // zero bytes
	WrongMagic                    // not a control block, or the original's
	WrongVersion                  // another abi_version
	WrongSize                     // not the size of a control block
	BadHeader                     // fields that contradict the layout or each other
	WrongName                     // the header names another owner than the file
	Vanished                      // replaced while it was looked at
	TooMany                       // eight others were accepted
)

var causeNames = [...]string{
	Unreadable: "unreadable", Symlink: "symlink", NotRegular: "not_regular", WrongOwner: "wrong_owner",
	WrongMode: "wrong_mode", HardLinked: "hard_linked", Empty: "empty", WrongMagic: "wrong_magic",
	WrongVersion: "wrong_version", WrongSize: "wrong_size", BadHeader: "bad_header", WrongName: "wrong_name",
	Vanished: "vanished", TooMany: "too_many",
}

func (c Cause) String() string {
	if int(c) < len(causeNames) && causeNames[c] != "" {
		return causeNames[c]
	}
	return fmt.Sprintf("cause(%d)", uint8(c))
}

// Refusal is a file that a scan did not accept. It is left as it is.
type Refusal struct {
	Name   string // in the group's directory
	Cause  Cause
	Detail string // what was found and what is valid
}

func (f *Refusal) Error() string {
	return fmt.Sprintf("registry: %s: refused, %v: %s", f.Name, f.Cause, f.Detail)
}

func refuse(c Cause, format string, args ...any) *Refusal {
	return &Refusal{Cause: c, Detail: fmt.Sprintf(format, args...)}
}
