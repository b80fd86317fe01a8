package proto

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// casesPerSchema is how many records are tried on one random schema.
const casesPerSchema = 2000

// TestDecoderAgreesWithDynamicpbOnRandomSchemas tries random records, legal and
// damaged, on random schemas of every syntax and under every option, and compares
// acceptance and every value with dynamicpb (issue 4 point 4; G8). Block n of 2,000
// cases depends on the seed and n only, so the outcome is the same with any number
// of workers. ICESTREAM_DIFF_CASES asks for more (make fuzz-decode),
// ICESTREAM_DIFF_BLOCK for a single block.
func TestDecoderAgreesWithDynamicpbOnRandomSchemas(t *testing.T) {
	seed := uint64(envInt("ICESTREAM_DIFF_SEED", 1))
	if block := envInt("ICESTREAM_DIFF_BLOCK", -1); block >= 0 {
		tally := &tally{}
		tally.block(t, newSchemaMaker(t), seed, uint64(block))
		return
	}
	cases := envInt("ICESTREAM_DIFF_CASES", 40_000)
	blocks := uint64((cases + casesPerSchema - 1) / casesPerSchema)
	sum := &tally{began: time.Now(), blocks: blocks}
	var workers sync.WaitGroup
	var next atomic.Uint64
	for range runtime.GOMAXPROCS(0) {
		maker := newSchemaMaker(t)
		workers.Go(func() {
			for n := next.Add(1) - 1; n < blocks && !t.Failed(); n = next.Add(1) - 1 {
				sum.block(t, maker, seed, n)
			}
		})
	}
	workers.Wait()
	t.Log(sum)
	require.False(t, t.Failed())
	require.Greater(t, sum.accepted, sum.cases/3, "too few good records to mean anything")
	require.Greater(t, sum.refused, sum.cases/20, "too few bad records to mean anything")
	require.Less(t, sum.skipped, sum.cases/50, "too many records that the oracle cannot judge")
}

// tally counts what was tried.
type tally struct {
	mu                                sync.Mutex
	began                             time.Time
	blocks, done                      uint64
	cases, accepted, refused, skipped int
}

func (s *tally) block(t testing.TB, maker *schemaMaker, seed, n uint64) {
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("block %d: panic: %v", n, p)
		}
		if t.Failed() {
			t.Logf("failed in block %d: ICESTREAM_DIFF_SEED=%d ICESTREAM_DIFF_BLOCK=%d", n, seed, n)
		}
	}()
	r := rand.New(rand.NewPCG(seed, n))
	md := maker.next(t, r)
	opts := Options{EnumAsInt: r.IntN(4) == 0, OneofCase: r.IntN(4) == 0, TimeOfDayAsTime: r.IntN(4) == 0, TimestampNanos: r.IntN(4) == 0, Variant: r.IntN(4) == 0}
	d := newDifferential(t, md, opts)
	wire := &wireMaker{r: r}
	d.run(casesPerSchema, func() []byte { return wire.record(nil, md) })

	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	s.cases += casesPerSchema
	s.accepted += d.accepted
	s.refused += d.refused
	s.skipped += d.skipped
	if s.cases%1_000_000 == 0 {
		t.Log(s)
	}
}

func (s *tally) String() string {
	return fmt.Sprintf("%d cases on %d schemas in %s: %d accepted, %d refused, %d not judged",
		s.cases, s.done, time.Since(s.began).Round(time.Second), s.accepted, s.refused, s.skipped)
}
