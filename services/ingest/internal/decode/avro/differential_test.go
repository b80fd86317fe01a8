package avro

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/stretchr/testify/require"
	oracle "github.com/twmb/avro"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// tool is a schema with its decoder and the table it made.
type tool struct {
	schema *Schema
	nodes  []*schema.Node
	batch  *Batch
	judge  *oracle.Schema
}

func newTool(t testing.TB, text string, opts Options) *tool {
	t.Helper()
	s, err := Parse(text)
	require.NoError(t, err, text)
	s.With(opts)
	candidate, err := s.Candidate()
	require.NoError(t, err, text)
	target := schema.Evolve(&schema.Schema{}, candidate, nil, schema.Options{FormatVersion: 3})
	require.NoError(t, target.Schema.Validate())
	p, err := Compile(s, target.Schema)
	require.NoError(t, err, text)
	judge, err := oracle.Parse(text)
	require.NoError(t, err, text)
	return &tool{s, target.Schema.Mapped(), p.NewBatch(), judge}
}

func (x *tool) row(t testing.TB, arrays []arrow.Array, row int) object {
	out := object{}
	for i, n := range x.nodes {
		out[n.Source] = got(t, n, arrays[i], row)
	}
	return out
}

// check decodes a record beside the oracle, and a good record after it.
func (x *tool) check(t testing.TB, payload, good []byte) (refused bool) {
	t.Helper()
	x.batch.Reset()
	require.NoError(t, x.batch.Append(good))
	err := x.batch.Append(payload)
	var v any
	rest, oracleErr := x.judge.Decode(payload, &v, oracle.TaggedUnions())
	if err != nil {
		e, ok := errors.AsType[*cell.Error](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, 1, x.batch.Rows())
		if oracleErr == nil && len(rest) == 0 { // what only we refuse
			require.Contains(t, []string{
				"bad_boolean", "invalid_utf8", "invalid_timestamp", "invalid_date", "invalid_time_of_day", "invalid_decimal",
				"too_complex", "duplicate_key", "bad_length", "bad_varint", "truncated",
			}, e.Reason, "%v", err)
		}
		require.NoError(t, x.batch.Append(good))
		x.compare(t, good, good)
		return true
	}
	require.NoError(t, oracleErr, "the oracle refuses what we decode")
	require.Empty(t, rest)
	require.NoError(t, x.batch.Append(good))
	x.compare(t, good, payload, good)
	return false
}

// compare holds the rows against the payloads.
func (x *tool) compare(t testing.TB, payloads ...[]byte) {
	t.Helper()
	require.Equal(t, len(payloads), x.batch.Rows())
	arrays := x.batch.Finish()
	for _, a := range arrays {
		if full, can := a.(interface{ ValidateFull() error }); can {
			require.NoError(t, full.ValidateFull())
		}
	}
	for row, payload := range payloads {
		var v any
		_, err := x.judge.Decode(payload, &v, oracle.TaggedUnions())
		require.NoError(t, err)
		same(t, want(t, x.schema.root, v, nil), x.row(t, arrays, row), "")
	}
}

func TestDecodingAgreesWithAnotherLibrary(t *testing.T) { // P1: random schemas, legal and mutated records
	rounds := 120
	if testing.Short() {
		rounds = 24
	}
	if n, err := strconv.Atoi(os.Getenv("ICESTREAM_DIFF_CASES")); err == nil {
		rounds = n / 60
	}
	refused, total := 0, 0
	for seed := range rounds {
		g := &gen{r: rand.New(rand.NewPCG(uint64(seed), 7))}
		text, err := json.Marshal(g.record(3))
		require.NoError(t, err)
		x := newTool(t, string(text), Options{Nanos: seed%2 == 1, Variant: seed%3 == 1})
		good := g.encode(nil, x.schema.root, 4)
		if err := x.batch.Append(good); err != nil {
			continue // a random decimal beyond its precision
		}
		for range 30 {
			payload := g.encode(nil, x.schema.root, 5)
			if x.check(t, payload, good) {
				refused++
			}
			total++
			for range 1 + g.r.IntN(3) {
				if len(payload) == 0 {
					break
				}
				switch at := g.r.IntN(len(payload)); g.r.IntN(3) {
				case 0:
					payload[at] ^= 1 << g.r.IntN(8)
				case 1:
					payload = payload[:at]
				default:
					payload[at] = byte(g.r.IntN(256))
				}
			}
			x.check(t, payload, good)
		}
	}
	require.Less(t, refused, total/2)
	t.Logf("%d legal records, %d of them with values that cannot be kept", total, refused)
}

func FuzzDecode(f *testing.F) {
	for seed := range uint64(40) {
		g := &gen{r: rand.New(rand.NewPCG(seed, 7))}
		text, _ := json.Marshal(g.record(3))
		if s, err := Parse(string(text)); err == nil {
			f.Add(seed, g.encode(nil, s.root, 4))
		}
	}
	f.Fuzz(func(t *testing.T, seed uint64, payload []byte) {
		g := &gen{r: rand.New(rand.NewPCG(seed, 7))}
		text, _ := json.Marshal(g.record(3))
		x := newTool(t, string(text), Options{Nanos: seed%2 == 1, Variant: seed%3 == 1})
		good := g.encode(nil, x.schema.root, 4)
		if x.batch.Append(good) == nil {
			x.check(t, payload, good)
		}
	})
}
