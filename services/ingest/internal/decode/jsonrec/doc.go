// Package jsonrec decodes JSON records straight from their text into Arrow columns.
//
// A Shape says which columns records make: those of a JSON Schema (FromSchema), those
// that a pipeline declares (FromColumns), or one column with the text as it is
// (Document). Candidate gives them to the committer, Compile turns shape and target
// into a Plan whose batches decode record after record. The rules are in
// docs/other-formats.md.
//
// The reader of the text is our own: one strict walk (RFC 8259) that writes into the
// columns as it goes. The libraries for Go either build a tree per record, or do not
// check what they pass over, or take numbers for floats; here integers are exact, and
// malformed text, invalid UTF-8, doubled keys and numbers that do not fit are refused.
// Shape and Plan are safe for concurrent use; a Batch belongs to one goroutine at a
// time.
package jsonrec

// Version is the version of the mapping. It changes whenever the same record would be
// decoded into another row, and is part of a pipeline's revision.
const Version = 3
