package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheFloodGuardIsOnUnlessTurnedOff(t *testing.T) {
	const head = "deployment: d\ncatalog: {uri: \"http://c\", warehouse: w}\nkafka: {bootstrap.servers: b:1}\nregistry: {url: \"http://r\"}\n"
	parse := func(pipeline string) (*Config, error) {
		c, _, err := Parse("test", []byte(head+"pipelines: [{name: p, topics: [t], table: a.b"+pipeline+"}]\n"), nil, nil)
		return c, err
	}
	c, err := parse("")
	require.NoError(t, err)
	require.Equal(t, Flood{Share: 50, Window: 1000}, c.Pipelines[0].Flood)
	c, err = parse(", flood: {share: 5%, window: 200}")
	require.NoError(t, err)
	require.Equal(t, Flood{Share: 5, Window: 200}, c.Pipelines[0].Flood)
	c, err = parse(", flood: {share: off}")
	require.NoError(t, err)
	require.Zero(t, c.Pipelines[0].Flood.Share)
	require.Equal(t, "off", c.Pipelines[0].Flood.Share.String())
	_, err = parse(", flood: {share: 50}")
	require.ErrorContains(t, err, "write 1% to 100%, or off")
	_, err = parse(", flood: {share: 101%}")
	require.Error(t, err)
	_, err = parse(", flood: {window: 3}")
	require.ErrorContains(t, err, "use 10 to 1000000 records")
}
