// Package fault is the error type that crosses packages and the wire: a typed
// reason, a message for people, and whether trying again can help.
package fault

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Reason classifies an error. The numbers are those of errors/v1 on the wire:
// never renumber.
type Reason int32

// Reasons. The comment says who answers it and what a caller should do.
const (
	Unspecified      Reason = 0
	Internal         Reason = 1  // a bug: report it
	InvalidArgument  Reason = 2  // the request is wrong: change it
	Unavailable      Reason = 3  // a dependency is away: try again
	NotReady         Reason = 4  // recovering: try again
	NotOwner         Reason = 5  // another instance owns the table: follow the address
	WrongDoor        Reason = 6  // another service answers this call: follow the addresses
	Fenced           Reason = 7  // an older writer epoch or another table uuid: stop
	TooOld           Reason = 8  // the history a token needs is gone
	EpochChanged     Reason = 9  // the log epoch of a token ended before the table covered it
	NotYet           Reason = 10 // the position is not visible yet: wait
	LeaseExpired     Reason = 11 // begin the read again
	SnapshotGone     Reason = 12 // expired: begin the read again
	SchemaChanged    Reason = 13 // begin the read again
	OverLimit        Reason = 14 // a byte or size limit: wait or ask for less
	OutOfOrder       Reason = 15 // an append does not begin at appended_next: seek there
	UnknownSchema    Reason = 16 // the Schema event has not arrived yet: try again
	UnknownTable     Reason = 17 // no such table
	UnknownPartition Reason = 18 // the log does not know the partition yet: open the table again
	SchemaRefused    Reason = 19 // an operator must decide
	Unauthorized     Reason = 20 // credentials are wrong or rights are missing
	Conflict         Reason = 21 // somebody else changed the same thing
	Corrupt          Reason = 22 // bytes that fail their checksum or shape
	DiskFull         Reason = 23 // make room: nothing is lost meanwhile
	Stopped          Reason = 24 // needs an operator: the message says which command
	Unsupported      Reason = 25 // this build or version cannot do it
	NotFound         Reason = 26 // a topic, pipeline or read that does not exist
)

var names = map[Reason]string{
	Unspecified: "UNSPECIFIED", Internal: "INTERNAL", InvalidArgument: "INVALID_ARGUMENT", Unavailable: "UNAVAILABLE",
	NotReady: "NOT_READY", NotOwner: "NOT_OWNER", WrongDoor: "WRONG_DOOR", Fenced: "FENCED", TooOld: "TOO_OLD",
	EpochChanged: "EPOCH_CHANGED", NotYet: "NOT_YET", LeaseExpired: "LEASE_EXPIRED", SnapshotGone: "SNAPSHOT_GONE",
	SchemaChanged: "SCHEMA_CHANGED", OverLimit: "OVER_LIMIT", OutOfOrder: "OUT_OF_ORDER", UnknownSchema: "UNKNOWN_SCHEMA",
	UnknownTable: "UNKNOWN_TABLE", UnknownPartition: "UNKNOWN_PARTITION", SchemaRefused: "SCHEMA_REFUSED",
	Unauthorized: "UNAUTHORIZED", Conflict: "CONFLICT", Corrupt: "CORRUPT", DiskFull: "DISK_FULL", Stopped: "STOPPED",
	Unsupported: "UNSUPPORTED", NotFound: "NOT_FOUND",
}

// String returns the upper-case name used on the wire and in messages.
func (r Reason) String() string {
	if n, ok := names[r]; ok {
		return n
	}
	return fmt.Sprintf("REASON_%d", int32(r))
}

// Reasons lists every reason in numeric order.
func Reasons() []Reason { return slices.Sorted(maps.Keys(names)) }

// Retryable reports whether the same request may succeed later by itself.
func (r Reason) Retryable() bool {
	switch r {
	case Unavailable, NotReady, NotYet, OverLimit, UnknownSchema, UnknownPartition, DiskFull, Conflict, NotOwner:
		return true
	default:
		return false
	}
}

// Error is an error with a reason. Meta carries facts for programs (addresses,
// expected offsets) and is shown to people only through Message.
type Error struct {
	Reason     Reason
	Message    string
	RetryAfter time.Duration // zero: no hint
	Meta       map[string]string
	Cause      error
}

// New makes an Error; the message follows fmt.Sprintf, and a %w argument becomes
// the cause. A cause of the same reason does not say it again.
func New(r Reason, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Reason: r, Message: err.Error(), Cause: errors.Unwrap(err)}
	if c, ok := errors.AsType[*Error](e.Cause); ok && c.Reason == r {
		e.Message = strings.Replace(e.Message, c.Error(), c.Message, 1)
	}
	return e
}

// With returns a copy of e with one more fact.
func (e *Error) With(key, value string) *Error {
	c := *e
	c.Meta = maps.Clone(e.Meta)
	if c.Meta == nil {
		c.Meta = map[string]string{}
	}
	c.Meta[key] = value
	return &c
}

// After returns a copy of e with a retry hint.
func (e *Error) After(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// Error returns "REASON: message".
func (e *Error) Error() string { return e.Reason.String() + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is matches another *Error of the same reason and no message, so that
// errors.Is(err, fault.Of(fault.Fenced)) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Message == "" && t.Reason == e.Reason
}

// Of returns a bare Error of reason r for errors.Is.
func Of(r Reason) error { return &Error{Reason: r} }

// ReasonOf returns the reason of the first *Error in err's chain, Unspecified
// for nil, and Internal for any other error.
func ReasonOf(err error) Reason {
	if err == nil {
		return Unspecified
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return Internal
}

// Describe renders err for people: the message without the reason word, with
// the reason in brackets at the end.
func Describe(err error) string {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err.Error()
	}
	return Text(err) + " [" + e.Reason.String() + "]"
}

// FirstOf is a list for people of at most so many entries, and one that counts the
// others: "and 3 more". It may write to the list's memory.
func FirstOf(list []string, most int) []string {
	if more := len(list) - most; more > 0 {
		return append(list[:most], fmt.Sprintf("and %d more", more))
	}
	return list
}

// Text is err for people without any reason word, for places that say by themselves
// what kind of trouble it is.
func Text(err error) string {
	text := err.Error()
	var strip func(error)
	strip = func(err error) {
		if e, ok := err.(*Error); ok { //nolint:errorlint // each of the chain is looked at
			text = strings.Replace(text, e.Reason.String()+": ", "", 1)
		}
		switch w := err.(type) { //nolint:errorlint // both ways to wrap
		case interface{ Unwrap() error }:
			if next := w.Unwrap(); next != nil {
				strip(next)
			}
		case interface{ Unwrap() []error }:
			for _, next := range w.Unwrap() {
				strip(next)
			}
		}
	}
	strip(err)
	return text
}
