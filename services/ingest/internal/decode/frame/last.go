package frame

// Last is the frame of the value that was taken apart last. Nearly always the next
// one begins with the same reference: then comparing takes the place of parsing.
// The zero value is ready.
type Last struct {
	Frame

	head []byte // what stood before the payload, own memory; empty: nothing to compare with
}

// Same takes value apart if it begins as the last one did. It is for values whose
// record has no header with a reference, and for the same kind of parsing.
func (l *Last) Same(value []byte) bool {
	n := len(l.head)
	if n == 0 || len(value) < n || string(value[:n]) != string(l.head) {
		return false
	}
	l.Payload = value[n:]
	return true
}

// Keep remembers what parsing of value gave.
func (l *Last) Keep(f Frame, value []byte) {
	l.Frame, l.head = f, l.head[:0]
	if f.Form == PrefixID {
		l.head = append(l.head, value[:len(value)-len(f.Payload)]...)
		if f.Index != nil {
			l.Index = l.head[len(l.head)-len(f.Index):] // the value's memory may be gone when it is looked at next
		}
	}
}
