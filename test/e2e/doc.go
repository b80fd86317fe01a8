// Package e2e runs the four services as processes against peers that nobody
// here wrote: a Kafka broker, a Confluent-compatible registry, an Iceberg REST
// catalog and an S3 server (scripts in peers/), fed by confluent-kafka and judged
// by pyiceberg and DuckDB.
//
//	make e2e-peers            1,000,000 records, each service killed once
//	make e2e-peers-small      the same, smaller, as CI runs it
//	make e2e-faults           the fault table: what others lose, and what we do
//	make e2e-kills KILLS=100  random kills under load, audit after each, recovery times
package e2e
