package ingest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
)

// Declared columns of types that the pipeline's tables do not have are a mistake of the configuration, found before any
// record is read (issue 4 point 3).
func TestDeclaredTypesNeedTheirFormatVersion(t *testing.T) {
	p := &config.Pipeline{Name: "a", Columns: "id long, s struct<at timestamptz_ns>, free variant"}
	p.Format, p.FormatVersion = "json", 2
	_, err := codec(p, nil)
	require.ErrorContains(t, err, "pipeline a: column s.at has type timestamptz_ns")
	require.ErrorContains(t, err, "set format_version: 3")
	p.FormatVersion = 3
	_, err = codec(p, nil)
	require.NoError(t, err)
	p.Columns, p.FormatVersion = "id long, at timestamptz, free json", 2
	_, err = codec(p, nil)
	require.NoError(t, err)
}
