package committer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
)

func TestValidateFindsPropertiesThatNoTableIsMadeWith(t *testing.T) {
	const text = `
pipelines:
  - {name: a, topics: [a], table: n.a, properties: {write.parquet.compression-codec: snappy}}
  - {name: b, topics: [b], table: n.b, properties: {write.parquet.compression-codec: zstdd, s3.region: x, icestream.owner: y}}
`
	c, _, err := config.Parse("x.yaml", []byte(text), nil, nil)
	require.NoError(t, err)
	require.EqualError(t, Validate(c), `x.yaml:4:52: pipelines[1].properties: icestream.owner is kept by Icestream itself: remove it
x.yaml:4:52: pipelines[1].properties: s3.region is a setting of the catalog, not of a table: move it to catalog.properties
x.yaml:4:52: pipelines[1].properties: write.parquet.compression-codec is zstdd: write zstd, snappy, gzip or uncompressed (others cannot be read everywhere)`)
}
