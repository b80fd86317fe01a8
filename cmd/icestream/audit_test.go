package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/committer"
)

func TestABarShowsHowFarAnAuditIs(t *testing.T) {
	for want, p := range map[string]committer.AuditProgress{
		"[===============               ]  50%  table a.b":         {What: "table a.b", Pass: 1, Done: 5, Total: 10},
		"[==============================] 100%  table a.b, pass 2": {What: "table a.b", Pass: 2, Done: 12, Total: 10},
		"7  log of t[0]": {What: "log of t[0]", Pass: 1, Done: 7},
	} {
		require.Equal(t, want, barText(p))
	}
	var out bytes.Buffer
	b := newBar(&out)
	b.show(committer.AuditProgress{Done: 1, Total: 2})
	b.clear()
	require.Empty(t, out.String(), "only a terminal gets a bar")
}

func TestAPartitionToMoveForwardIsNamedFromTheRight(t *testing.T) {
	for text, want := range map[string]*committerv1.ResetForward{
		"3=40":            {Partition: 3, Offset: 40},
		"orders/3=40":     {Topic: "orders", Partition: 3, Offset: 40},
		"p/orders/0=1000": {Pipeline: "p", Topic: "orders", Offset: 1000},
		"p/orders[7]=9":   {Pipeline: "p", Topic: "orders", Partition: 7, Offset: 9}, // as it is printed
		"orders[7]=9":     {Topic: "orders", Partition: 7, Offset: 9},
	} {
		f, err := parseForward(text)
		require.NoError(t, err)
		require.Equal(t, want.String(), f.String())
	}
	for _, text := range []string{"", "3", "=4", "a/b/c/3=4", "a/b/c[3]=4", "[3]=4", "a[3=4", "a3]=4", "a[x]=4", "x=4", "3=x", "3=-1", "-1=4"} {
		_, err := parseForward(text)
		require.ErrorContains(t, err, "want pipeline/topic/partition=offset", text)
	}
}

func TestAuditAndOffsetsRefuseWhatTheyDoNotKnow(t *testing.T) {
	for _, args := range [][]string{
		{"audit", "--dir", t.TempDir(), "a.b", "--against", "pulsar"},
		{"offsets", "reset", "--addr", "127.0.0.1:1", "a.b", "--to", "yesterday"},
		{"offsets", "reset", "--addr", "127.0.0.1:1", "a.b", "--partition", "x"},
	} {
		code, _, errs := icestream(t, args...)
		require.Equal(t, run.CannotTell, code, errs)
		require.NotEmpty(t, errs)
	}
}
