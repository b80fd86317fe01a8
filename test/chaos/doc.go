// Package chaos runs the whole suite in one process under virtual time, breaks everything that can break by a seed, and
// checks with an oracle that every record landed exactly once.
package chaos
