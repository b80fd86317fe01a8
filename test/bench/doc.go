// Package bench measures Icestream next to its floors, in one run, as ratios:
//
//	make bench         the whole pipeline against the Parquet stage alone, the gRPC hop against plain TCP, decode against a
//	                   walk over the same records
//	make bench-rival   CPU and memory against the Iceberg sink for Kafka Connect, on the same rows, broker and catalog
//
// Absolute numbers move with the machine and with whoever else uses it; ratios of one run move far less. The figures and
// how to read them: docs/benchmarks.md.
package bench
