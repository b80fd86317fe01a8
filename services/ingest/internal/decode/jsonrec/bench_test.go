package jsonrec

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func BenchmarkDecode(b *testing.B) {
	records, bytes := orders()
	perRecord := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(records)), "ns/record")
	}
	for name, shape := range map[string]func() (*Shape, error){
		"columns":  func() (*Shape, error) { return FromColumns(orderColumns) },
		"document": func() (*Shape, error) { return Document(), nil },
	} {
		b.Run(name, func(b *testing.B) {
			s, err := shape()
			require.NoError(b, err)
			x := newTool(b, s)
			b.SetBytes(bytes)
			b.ReportAllocs()
			for b.Loop() {
				x.batch.Reset()
				for _, r := range records {
					if err := x.batch.Append(r); err != nil {
						b.Fatal(err)
					}
				}
			}
			perRecord(b)
		})
	}
	b.Run("encoding-json-valid", func(b *testing.B) {
		b.SetBytes(bytes)
		for b.Loop() {
			for _, r := range records {
				if !json.Valid(r) {
					b.Fatal("not valid")
				}
			}
		}
		perRecord(b)
	})
	b.Run("encoding-json-struct", func(b *testing.B) {
		type line struct {
			SKU   string `json:"sku"`
			Count int32  `json:"count"`
		}
		b.SetBytes(bytes)
		b.ReportAllocs()
		for b.Loop() {
			for _, r := range records {
				var v struct {
					ID       int64
					Customer string
					Created  time.Time
					Amount   json.Number
					Paid     bool
					Note     *string
					Units    int32
					Ratio    float64
					Lines    []line
				}
				if err := json.Unmarshal(r, &v); err != nil {
					b.Fatal(err)
				}
			}
		}
		perRecord(b)
	})
}
