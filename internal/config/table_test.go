package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTopicMapsToLowerCaseAndUnderscores(t *testing.T) {
	p := &Pipeline{Name: "p", Table: "shop.{topic}"}
	for topic, want := range map[string]string{
		"orders": "shop.orders", "Shop.Orders-v2": "shop.shop_orders_v2", "a_b": "shop.a_b",
	} {
		got, err := p.TopicTable(topic)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestTopicsWithOneTableAreRefusedAndTheOthersStay(t *testing.T) {
	p := &Pipeline{Name: "p", Table: "shop.{topic}"}
	got, err := p.TopicTables([]string{"c", "a.b", "a-b", "A.b"})
	require.ErrorContains(t, err, "shop.a_b")
	require.Equal(t, map[string]string{"c": "shop.c"}, got)

	_, err = p.TopicTables([]string{"x__quarantine"})
	require.ErrorContains(t, err, "quarantine")

	fixed := &Pipeline{Name: "p", Table: "shop.all"}
	got, err = fixed.TopicTables([]string{"a", "b"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "shop.all", "b": "shop.all"}, got)
}

func TestPatternMatchesWholeNames(t *testing.T) {
	p := &Pipeline{Pattern: `shop\..*|x`}
	require.True(t, p.Matches("shop.orders"))
	require.True(t, p.Matches("x"))
	require.False(t, p.Matches("myshop.orders"))
	require.False(t, p.Matches("xy"))
}

func TestRevisionCoversMappingOnly(t *testing.T) {
	c := Default()
	p := &Pipeline{Name: "p", Table: "a.b", Options: c.Defaults}
	base := c.Revision(p, "v1")
	require.NotEqual(t, base, c.Revision(p, "v2"))

	same := *p
	same.Commit.Interval = time.Hour
	same.Sort = Sort{{Transform: Transform{Name: "identity", Column: "x"}}}
	same.Metadata = []string{"kafka", "lsn"}
	require.Equal(t, base, c.Revision(&same, "v1"))

	for name, change := range map[string]func(*Pipeline){
		"enum":       func(p *Pipeline) { p.Enum = "int" },
		"key":        func(p *Pipeline) { p.Key = "raw" },
		"tombstones": func(p *Pipeline) { p.Tombstones = "row" },
		"on_invalid": func(p *Pipeline) { p.OnInvalid = "skip" },
		"message":    func(p *Pipeline) { p.Message = "x.Y" },
		"schema":     func(p *Pipeline) { p.Schema.ID = 3 },
		"metadata":   func(p *Pipeline) { p.Metadata = []string{"lsn"} },
	} {
		other := *p
		change(&other)
		require.NotEqual(t, base, c.Revision(&other, "v1"), name)
	}
	c.Limits.RecordMax = 1 << 20
	require.NotEqual(t, base, c.Revision(p, "v1"))
}

func TestSizesPrintAsTheyAreRead(t *testing.T) {
	for text, want := range map[string]Size{
		"512MiB": 512 << 20, "1.5 GiB": 3 << 29, "10MB": 10_000_000, "7B": 7, "0": 0, "1gib": 1 << 30,
	} {
		got, err := ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		back, err := ParseSize(got.String())
		require.NoError(t, err)
		require.Equal(t, got, back)
	}
	for _, text := range []string{"", "5", "-1B", "MiB", "9e99TiB", "1 furlong"} {
		_, err := ParseSize(text)
		require.Error(t, err, text)
	}
}

func TestSortOrders(t *testing.T) {
	for text, want := range map[string]string{
		"a":                        "a",
		"a asc":                    "a",
		"a DESC":                   "a desc",
		"a desc nulls last":        "a desc",
		"a nulls last":             "a nulls last",
		"bucket(4, a) desc  , b.c": "bucket(4, a) desc, b.c",
	} {
		var s Sort
		require.NoError(t, s.UnmarshalText([]byte(text)), text)
		require.Equal(t, want, s.String())
	}
	var s Sort
	require.Error(t, s.UnmarshalText([]byte("a sideways")))
	require.Error(t, s.UnmarshalText([]byte("a,")))
}
