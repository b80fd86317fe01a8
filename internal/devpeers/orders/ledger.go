package orders

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

const (
	chunkShift = 12
	chunkSize  = 1 << chunkShift
)

// chunk holds what must become of chunkSize consecutive offsets: 9 bytes an offset.
type chunk struct {
	sums     [chunkSize]uint64
	outcomes [chunkSize]Outcome
}

// partition holds the offsets of one partition. Chunks are found by offset, so a hole costs 8 bytes per 4,096 offsets.
type partition struct {
	chunks []*chunk
	next   int64 // every offset below is recorded
	end    int64 // the highest recorded offset + 1
}

func (p *partition) at(offset int64) (Outcome, uint64) {
	i := offset >> chunkShift
	if offset < 0 || i >= int64(len(p.chunks)) || p.chunks[i] == nil {
		return OutcomeUnknown, 0
	}
	c := p.chunks[i]
	return c.outcomes[offset&(chunkSize-1)], c.sums[offset&(chunkSize-1)]
}

func (p *partition) set(offset int64, outcome Outcome, sum uint64) {
	i := int(offset >> chunkShift)
	for len(p.chunks) <= i {
		p.chunks = append(p.chunks, nil)
	}
	if p.chunks[i] == nil {
		p.chunks[i] = new(chunk)
	}
	c := p.chunks[i]
	c.outcomes[offset&(chunkSize-1)], c.sums[offset&(chunkSize-1)] = outcome, sum
	p.end = max(p.end, offset+1)
	for {
		if known, _ := p.at(p.next); known == OutcomeUnknown {
			return
		}
		p.next++
	}
}

// Ledger knows what must become of every acknowledged record, by partition and offset. It takes about 9 bytes a record.
// It is safe for concurrent use.
type Ledger struct {
	mu         sync.RWMutex
	partitions map[int32]*partition
	counts     [outcomes]int64
	changed    chan struct{} // closed at the next record, if somebody waits
	err        error         // the first failure: an offset given twice, or the file

	file *os.File
	out  *bufio.Writer
}

// NewLedger returns an empty ledger that lives in memory.
func NewLedger() *Ledger { return &Ledger{partitions: map[int32]*partition{}} }

const (
	ledgerMagic = "icestream ledger 1\n"
	entrySize   = 4 + 8 + 1 + 8
)

// OpenLedger returns a ledger that is also kept in a file: it begins with what the file holds and appends to it. Flush or
// Close write out what is buffered; a kill before loses the newest entries, and half an entry at the end is cut off.
func OpenLedger(path string) (*Ledger, error) {
	l := NewLedger()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("opening ledger %s: %w", path, err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening ledger %s: %w", path, err)
	}
	if err := l.load(file); err != nil {
		return nil, fmt.Errorf("opening ledger %s: %w", path, errors.Join(err, file.Close()))
	}
	l.file, l.out = file, bufio.NewWriterSize(file, 64<<10)
	return l, nil
}

func (l *Ledger) load(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < int64(len(ledgerMagic)) {
		if err := file.Truncate(0); err != nil {
			return err
		}
		_, err := file.WriteAt([]byte(ledgerMagic), 0)
		return errors.Join(err, seekEnd(file))
	}
	in := bufio.NewReaderSize(file, 1<<20)
	magic := make([]byte, len(ledgerMagic))
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != ledgerMagic {
		return errors.Join(err, errors.New("it is not a ledger of this version: remove it, or use another folder"))
	}
	var entry [entrySize]byte
	for n := (info.Size() - int64(len(ledgerMagic))) / entrySize; n > 0; n-- {
		if _, err := io.ReadFull(in, entry[:]); err != nil {
			return err
		}
		l.put(int32(binary.LittleEndian.Uint32(entry[0:])), int64(binary.LittleEndian.Uint64(entry[4:])),
			Outcome(entry[12]), binary.LittleEndian.Uint64(entry[13:]))
	}
	if l.err != nil {
		return l.err
	}
	whole := info.Size() - (info.Size()-int64(len(ledgerMagic)))%entrySize
	return errors.Join(file.Truncate(whole), seekEnd(file))
}

func seekEnd(file *os.File) error {
	_, err := file.Seek(0, io.SeekEnd)
	return err
}

// Record notes what must become of an acknowledged record. An offset is recorded once; a second time is kept as an error
// for Err, since it means that the broker gave an offset twice.
func (l *Ledger) Record(part int32, offset int64, outcome Outcome, checksum uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(part, offset, outcome, checksum)
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	if l.out == nil {
		return
	}
	var entry [entrySize]byte
	binary.LittleEndian.PutUint32(entry[0:], uint32(part))
	binary.LittleEndian.PutUint64(entry[4:], uint64(offset))
	entry[12] = byte(outcome)
	binary.LittleEndian.PutUint64(entry[13:], checksum)
	if _, err := l.out.Write(entry[:]); err != nil {
		l.fail(fmt.Errorf("writing the ledger: %w", err))
	}
}

func (l *Ledger) put(part int32, offset int64, outcome Outcome, checksum uint64) {
	if offset < 0 || outcome == OutcomeUnknown || outcome >= outcomes {
		l.fail(fmt.Errorf("recording partition %d offset %d with outcome %q: not a record", part, offset, outcome))
		return
	}
	p := l.partitions[part]
	if p == nil {
		p = new(partition)
		l.partitions[part] = p
	}
	if known, _ := p.at(offset); known != OutcomeUnknown {
		l.fail(fmt.Errorf("recording partition %d offset %d: the broker gave this offset twice", part, offset))
		return
	}
	p.set(offset, outcome, checksum)
	l.counts[outcome]++
}

func (l *Ledger) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// Err is the first failure: an offset that was recorded twice, or the ledger's file. A ledger that failed proves nothing.
func (l *Ledger) Err() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.err
}

// Count returns the number of records with this outcome.
func (l *Ledger) Count(outcome Outcome) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.counts[outcome]
}

// Total returns the number of records.
func (l *Ledger) Total() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var n int64
	for _, c := range l.counts {
		n += c
	}
	return n
}

// Vector returns, per partition, the offset below which every record is known.
func (l *Ledger) Vector() map[int32]int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	v := make(map[int32]int64, len(l.partitions))
	for n, p := range l.partitions {
		v[n] = p.next
	}
	return v
}

// WaitFor returns when every record below the vector is known. A row can be readable before its producer has heard of
// its offset, so a check of a read at a vector begins with this.
func (l *Ledger) WaitFor(ctx context.Context, vector map[int32]int64) error {
	for {
		l.mu.Lock()
		behind, missing := l.behind(vector)
		if !missing {
			l.mu.Unlock()
			return nil
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the producer's acknowledgement of partition %d offset %d: %w",
				behind, vector[behind]-1, context.Cause(ctx))
		case <-changed:
		}
	}
}

func (l *Ledger) behind(vector map[int32]int64) (int32, bool) {
	for part, offset := range vector {
		if p := l.partitions[part]; offset > 0 && (p == nil || p.next < offset) {
			return part, true
		}
	}
	return 0, false
}

// Flush writes buffered entries to the file and syncs it; without a file it does nothing.
func (l *Ledger) Flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out == nil {
		return nil
	}
	if err := errors.Join(l.out.Flush(), l.file.Sync()); err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	return nil
}

// Close flushes and closes the file. The ledger can still be read.
func (l *Ledger) Close() error {
	err := l.Flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		err = errors.Join(err, l.file.Close())
		l.file, l.out = nil, nil
	}
	return err
}

// ends returns, per partition, the highest recorded offset plus one.
func (l *Ledger) ends() map[int32]int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	v := make(map[int32]int64, len(l.partitions))
	for n, p := range l.partitions {
		v[n] = p.end
	}
	return v
}
