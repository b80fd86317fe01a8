package buffer_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
)

// BenchmarkGrpcHop sends the same 1 MiB batches over plain TCP and over the whole
// append path (gRPC, validation, journal with fdatasync, table log, answer), in
// one run on one machine, and reports both rates, their ratio, and CPU per GB. Figures of two
// machines, or of two runs, must not be compared.
func BenchmarkGrpcHop(b *testing.B) {
	const partitions, ranges, rows, size = 256, 64, 100, 10_400
	batches := make([]*event.Append, ranges)
	for i := range batches {
		batches[i] = entry(b, p0, int64(i)*rows, int64(i+1)*rows, size)
	}
	bytes := len(batches[0].RowBatch)
	b.SetBytes(int64(bytes))
	if b.N > partitions*ranges {
		b.Fatalf("%d messages wanted, %d are prepared: use a shorter -benchtime", b.N, partitions*ranges)
	}
	cpu := cpuSeconds(b)
	tcp := plainTCP(b, batches)
	tcpCPU := cpuSeconds(b) - cpu

	cfg := settings(b, "node.data_dir", b.TempDir(), "limits.hot.bytes", "512MiB")
	bed := startOn(b, file.OS{}, cfg)
	vec := ident.Vector{}
	for i := range partitions {
		vec[ident.Partition{Pipeline: "orders", Topic: "orders", Number: int32(i)}] = 0
	}
	out := bed.openTable(orders, state(1, 0, vec, ident.LSNState{}))
	require.NoError(b, bed.grant(orders, out.GetEpochWanted().GetNonce(), state(2, 1, vec, firstLSN)))
	s := bed.sender(orders)
	b.ResetTimer()
	start := time.Now()
	cpu = cpuSeconds(b)
	acked := make(chan error, 1)
	credit := make(chan int64, b.N+1)
	credit <- s.welcome.GetCredit()
	go func() { acked <- bed.receiveAll(s, b.N, partitions, rows, vec, credit) }()
	left := int64(0)
	for i := range b.N {
		a := *batches[i/partitions]
		a.Partition = ident.Partition{Pipeline: "orders", Topic: "orders", Number: int32(i % partitions)}
		for left < a.Bytes() {
			left += <-credit
		}
		left -= a.Bytes()
		if err := s.stream.SendMsg(&wire.AppendFrame{Entry: &a}); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-acked; err != nil {
		b.Fatal(err)
	}
	hop := float64(b.N) * float64(bytes) / time.Since(start).Seconds()
	b.StopTimer()
	gb := float64(b.N) * float64(bytes) / 1e9
	b.ReportMetric((cpuSeconds(b)-cpu)/gb, "cpu-s/GB")
	b.ReportMetric(tcpCPU/gb, "tcp-cpu-s/GB")
	b.ReportMetric(tcp/1e6, "tcp-MB/s")
	b.ReportMetric(hop/tcp, "x-of-tcp")
}

// cpuSeconds is the processor time of both ends so far, which other work on the
// machine does not change.
func cpuSeconds(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// receiveAll takes answers until n entries are accepted, and commits every 128.
func (b *bed) receiveAll(s *sender, n, partitions int, rows int64, vec ident.Vector, credit chan<- int64) error {
	seq := int64(3)
	for done := 0; done < n; {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		if c := m.GetCredit().GetBytes(); c > 0 {
			credit <- c
		}
		r := m.GetResult()
		if r == nil {
			continue
		}
		if r.GetOutcome() != bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED {
			return fmt.Errorf("entry %d: %s %s", done, r.GetOutcome(), r.GetText())
		}
		p := ident.Partition{Pipeline: "orders", Topic: "orders", Number: int32(done % partitions)}
		vec[p] = int64(done/partitions+1) * rows
		if done++; done%128 == 0 {
			c := state(seq, 1, vec, firstLSN)
			seq++
			if _, err := b.log.ReportCommit(context.Background(), &bufferv1.ReportCommitRequest{Table: orders, Commit: wire.CommitToProto(&c)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// plainTCP returns the bytes per second of the same batches over a connection.
func plainTCP(b *testing.B, batches []*event.Append) float64 {
	b.Helper()
	l := listen(b)
	size := len(batches[0].RowBatch)
	got := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- err
			return
		}
		buf := make([]byte, size)
		for range b.N {
			if _, err = io.ReadFull(c, buf); err != nil {
				break
			}
		}
		got <- err
		_ = c.Close()
	}()
	c, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", l.Addr().String())
	require.NoError(b, err)
	start := time.Now()
	for i := range b.N {
		_, err := c.Write(batches[i%len(batches)].RowBatch)
		require.NoError(b, err)
	}
	require.NoError(b, <-got)
	rate := float64(b.N) * float64(size) / time.Since(start).Seconds()
	require.NoError(b, c.Close())
	require.NoError(b, l.Close())
	return rate
}
