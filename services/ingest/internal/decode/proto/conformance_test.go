package proto

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

var conformance = flag.String("conformance", "", "folder with the proto files of the official conformance tests: answer its runner on standard input and output")

// TestOfficialConformanceCases is the other end of Google's conformance_test_runner,
// which holds the cases and the verdicts (make conformance). Of a binary record it
// answers what the decoder does: a fault, or the record encoded again by Google's
// library, after every value of the row was found to be that library's. Input in other
// forms, and output other than binary, is none of the decoder's business.
func TestOfficialConformanceCases(t *testing.T) {
	if *conformance == "" {
		t.Skip("needs the official runner: make conformance")
	}
	e := newTestee(t, *conformance)
	for {
		request, err := readFramed(os.Stdin)
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		answer := e.answer(request)
		_, err = os.Stdout.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(answer))), answer...))
		require.NoError(t, err)
	}
}

func readFramed(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.LittleEndian.Uint32(size[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

// testee has a plan for each message type of the suite.
type testee struct {
	t     testing.TB
	types map[string]*differential
}

// Numbers of the suite's own protocol, conformance.proto.
const (
	requestPayload, requestOutput, requestType = 1, 3, 4

	answerParseError, answerRuntimeError, answerPayload, answerSkipped = 1, 2, 3, 5

	outputBinary = 1
)

func newTestee(t testing.TB, dir string) *testee {
	e := &testee{t: t, types: map[string]*differential{}}
	paths, err := filepath.Glob(filepath.Join(dir, "test_messages_*.proto"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		file, err := registry.Compile(t.Context(), filepath.Base(path), string(text), nil)
		if err != nil {
			continue // of an edition that is not released yet: its cases are skipped
		}
		for i := range file.Messages().Len() {
			md := file.Messages().Get(i)
			e.types[string(md.FullName())] = newDifferential(t, md, Options{})
		}
	}
	return e
}

func (e *testee) answer(request []byte) []byte {
	var payload []byte
	var name string
	var output uint64
	binaryInput := false
	for b := request; len(b) > 0; {
		num, typ, n := protowire.ConsumeField(b)
		require.Positive(e.t, n)
		_, _, tag := protowire.ConsumeTag(b)
		switch {
		case num == requestPayload && typ == protowire.BytesType:
			payload, _ = protowire.ConsumeBytes(b[tag:])
			binaryInput = true
		case num == requestType && typ == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(b[tag:])
			name = string(v)
		case num == requestOutput && typ == protowire.VarintType:
			output, _ = protowire.ConsumeVarint(b[tag:])
		}
		b = b[n:]
	}
	if name == "conformance.FailureSet" { // the first question: which failures are expected
		return respond(answerPayload, nil)
	}
	d := e.types[name]
	if !binaryInput || output != outputBinary || d == nil {
		return respond(answerSkipped, []byte("not about binary records of a known type"))
	}
	return d.conform(payload)
}

func respond(num protowire.Number, text []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), text)
}

func (d *differential) conform(payload []byte) []byte {
	d.batch.Reset()
	if err := d.batch.Append(payload); err != nil {
		return respond(answerParseError, []byte(err.Error()))
	}
	columns := d.batch.Finish()
	row := arrowRow(d.names, columns, 0)
	want, accepted, panicked := oracle(d.md, payload)
	if !accepted || panicked || !same(row, want) {
		return respond(answerRuntimeError, fmt.Appendf(nil, "the decoder has %v, Google's library %v", row, want))
	}
	return respond(answerPayload, again(d.md, payload))
}

// again encodes what Google's library reads.
func again(md protoreflect.MessageDescriptor, payload []byte) []byte {
	m := dynamicpb.NewMessage(md)
	if err := protobuf.Unmarshal(payload, m); err != nil {
		return nil
	}
	out, err := protobuf.Marshal(m)
	if err != nil {
		return nil
	}
	return out
}
