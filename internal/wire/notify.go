package wire

// ProbeRequest and ProbeReply are the bodies of a probe, and [MetadataRequest]
// that of a descriptor request: nobody looks at what is in it.
const (
	ProbeRequest    = "{}"
	ProbeReply      = "{\"status\":\"success\"}\n"
	MetadataRequest = "{}"
	// Null is the body of a reply by which a peer says that it has nothing.
	Null = "null\n"
)

// NotifySuccess is the message of a reply to a notification.
const NotifySuccess = "success"

// CheckJSON reports whether b starts with a well-formed value.
func CheckJSON(b []byte) error {
	r := &reader{message: "body", b: b}
	return r.skip()
}

// AppendNotification appends n's JSON.
func AppendNotification(dst []byte, n *Notification) []byte {
	dst = append(dst, `{"name":`...)
	dst = appendString(dst, n.Name)
	dst = append(dst, `,"notify_msg":`...)
	dst = appendString(dst, n.Msg)
	return append(dst, "}\n"...)
}

// DecodeNotification reads a notification. It fails with a [*SyntaxError] or a
// [*FieldError].
func DecodeNotification(b []byte) (Notification, error) {
	var n Notification
	r := &reader{message: "notification", b: b}
	err := r.object(func(name string) (err error) {
		switch name {
		case "name":
			n.Name, err = r.text()
		case "notify_msg":
			n.Msg, err = r.text()
		default:
			err = r.skip()
		}
		return err
	})
	if err != nil {
		return Notification{}, err
	}
	return n, nil
}
