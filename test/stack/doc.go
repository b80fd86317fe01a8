// Package stack holds scenarios of the whole suite in one process: the four services with the constructors that their
// binaries use, real gRPC between them, and the embedded Kafka, registry and catalog on real ports. Each service and
// each peer can be stopped and started again on its own, and a ledger of what was produced says what must come out.
package stack
