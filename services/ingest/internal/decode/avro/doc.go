// Package avro decodes Avro records straight from their binary form into Arrow
// columns.
//
// Parse reads a writer schema, Candidate derives the columns that it wants, and once
// a target is agreed on (schema.Reconcile) Compile turns the two into a Plan whose
// batches decode record after record. Reader schemas, defaults and resolution play no
// part: each writer schema is its own plan onto the columns of the table, which follow
// the names of fields, and a field's aliases lead it to the column of an older name.
// The rules are in docs/other-formats.md.
//
// The schema reader is our own, since decoding needs a few facts of a schema only, and
// libraries refuse schemas whose records are fine (a default of the wrong type is
// common). Schema and Plan are safe for concurrent use; a Batch belongs to one
// goroutine at a time.
package avro

// Version is the version of the mapping. It changes whenever the same record would be
// decoded into another row, and is part of a pipeline's revision.
const Version = 3
