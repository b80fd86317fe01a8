package registry

import (
	"errors"
	"fmt"
	"time"
)

// What an error of this package is, for errors.Is. Only ErrNotFound and
// ErrBadSchema are faults of records; the others say that the registry cannot be
// asked now and that records must wait.
var (
	// ErrNotFound is a schema that the registry does not have. *NotFoundError.
	ErrNotFound = errors.New("schema not found")
	// ErrBadSchema is a schema that cannot be used. *BadSchemaError.
	ErrBadSchema = errors.New("schema not usable")
	// ErrUnavailable is a registry that gives no answer to trust. *UnavailableError.
	ErrUnavailable = errors.New("schema registry unavailable")
	// ErrUnauthorized is a registry that refuses us. *UnauthorizedError.
	ErrUnauthorized = errors.New("schema registry refuses access")
)

// NotFoundError names a schema that the registry, in its own words, does not have.
type NotFoundError struct {
	What    string // "schema id 12", "subject orders-value version 3"
	Code    int    // the registry's error code, 40401 to 40403
	Message string // the registry's text
}

// Error is the fault in words.
func (e *NotFoundError) Error() string {
	return fmt.Sprintf("looking up %s: the registry does not have it (%d: %s); was the record produced against another registry?", e.What, e.Code, e.Message)
}

// Is reports that the error is an ErrNotFound.
func (e *NotFoundError) Is(target error) bool { return target == ErrNotFound }

// BadSchemaError names a schema that cannot be compiled or is no Protobuf. It
// concerns the records of that schema only.
type BadSchemaError struct {
	What    string
	Subject string // where the schema is registered, empty where not known
	File    string // the file with the fault, by its import name
	Line    int    // 0 where not known
	Type    string // of the schema, where that is another one than was wanted
	Detail  string
}

// Error is the fault in words.
func (e *BadSchemaError) Error() string {
	where := e.What
	if e.Subject != "" {
		where += " of subject " + e.Subject
	}
	if e.File != "" {
		where += ", file " + e.File
	}
	if e.Line > 0 {
		where += fmt.Sprintf(" line %d", e.Line)
	}
	return fmt.Sprintf("compiling %s: %s", where, e.Detail)
}

// Is reports that the error is an ErrBadSchema.
func (e *BadSchemaError) Is(target error) bool { return target == ErrBadSchema }

// UnavailableError says why the registry could not be asked: it is down, slow,
// busy, or what answers is not a registry.
type UnavailableError struct {
	What       string
	URL        string        // without credentials
	Status     int           // HTTP status, 0 without an answer
	RetryAfter time.Duration // what the server asked for, at most a minute; 0 if nothing
	Detail     string
	Err        error // the error of the network, may be nil
}

// Error is the fault in words.
func (e *UnavailableError) Error() string {
	return fmt.Sprintf("looking up %s at %s: %s", e.What, e.URL, e.Detail)
}

// Is reports that the error is an ErrUnavailable.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Unwrap is the error of the network.
func (e *UnavailableError) Unwrap() error { return e.Err }

// UnauthorizedError is an answer 401 or 403.
type UnauthorizedError struct {
	What   string
	URL    string
	Status int
	Detail string
}

// Error is the fault in words.
func (e *UnauthorizedError) Error() string {
	return fmt.Sprintf("looking up %s at %s: status %d: %s; check the credentials in the registry section", e.What, e.URL, e.Status, e.Detail)
}

// Is reports that the error is an ErrUnauthorized.
func (e *UnauthorizedError) Is(target error) bool { return target == ErrUnauthorized }
