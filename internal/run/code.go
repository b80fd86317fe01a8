package run

import (
	"errors"
	"fmt"
)

// Code is the exit code of a process. Every binary of Icestream uses this one table.
type Code int

// The exit codes. Their meaning for people is in Codes.
const (
	OK          Code = 0
	Violated    Code = 1
	CannotTell  Code = 2
	BadConfig   Code = 3
	Dependency  Code = 4
	Internal    Code = 70
	Interrupted Code = 130
)

// CodeDoc explains one exit code.
type CodeDoc struct {
	Code    Code
	Name    string
	Meaning string
}

// Codes returns the table of all exit codes, in ascending order, as the CLI's help and the reference print it.
func Codes() []CodeDoc {
	return []CodeDoc{
		{OK, "ok", "done, and everything that was to be verified is proven"},
		{Violated, "violated", "a verification found a fault: rows lost, doubled or altered, a guarantee that does not hold, or a schema that a table would refuse"},
		{CannotTell, "cannot tell", "the verb could not be carried out or decided: wrong usage, or something needed to decide is missing"},
		{BadConfig, "configuration", "the configuration is refused; each error names its file, line and column"},
		{Dependency, "dependency", "a peer (broker, registry, catalog, object store, another service) cannot be reached or refuses, such as wrong credentials"},
		{Internal, "internal", "a fault of Icestream itself, or of the machine (disk full, fsync error); the log names the actor"},
		{Interrupted, "interrupted", "ended by a signal before the verb was done"},
	}
}

// String returns the name of the code.
func (c Code) String() string {
	for _, d := range Codes() {
		if d.Code == c {
			return d.Name
		}
	}
	return fmt.Sprintf("exit code %d", int(c))
}

// coded is an error that knows with which code the process has to end.
type coded struct {
	code Code
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

// WithCode marks err with the exit code that it deserves. It returns nil for a nil error. The mark survives
// wrapping; of several marks in one chain the outermost counts.
func WithCode(code Code, err error) error {
	if err == nil {
		return nil
	}
	return &coded{code: code, err: err}
}

// CodeOf returns the exit code for err: OK for nil, the mark set by WithCode, and Internal for an unmarked error,
// since an error that nobody has classified is a fault of ours.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	if c, ok := errors.AsType[*coded](err); ok {
		return c.code
	}
	return Internal
}
