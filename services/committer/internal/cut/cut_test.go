package cut

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDecide(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	policy := Policy{Interval: time.Minute, Bytes: 1000, Rows: 100, Budget: 10_000}
	rows := Load{Since: start, SinceRows: start, Rows: 1}
	with := func(change func(*Load)) Load { l := rows; change(&l); return l }

	tests := []struct {
		name string
		now  time.Time
		load Load
		want Reason
		ask  time.Time
	}{
		{"nothing held is never cut", at(48 * time.Hour), Load{}, None, time.Time{}},
		{"nothing held is not cut when asked either", start, Load{Asked: true, Stopping: true}, None, time.Time{}},
		{"rows wait for the interval", at(59 * time.Second), rows, None, at(time.Minute)},
		{"the interval counts from the oldest row", at(time.Minute), rows, Interval, time.Time{}},
		{"bytes come before the interval (O8)", start, with(func(l *Load) { l.Encoded = 1000 }), Bytes, time.Time{}},
		{"one byte below the bound waits", start, with(func(l *Load) { l.Encoded = 999 }), None, at(time.Minute)},
		{"rows come before the interval", start, with(func(l *Load) { l.Rows = 100 }), Rows, time.Time{}},
		{"rows that need newer columns do not wait", start, with(func(l *Load) { l.NewSchema = true }), Schema, time.Time{}},
		{"hot pressure of all tables cuts", start, with(func(l *Load) { l.Hot, l.Own, l.Ready = 5000, 250, 250 }), Pressure, time.Time{}},
		{"below the pressure it does not", start, with(func(l *Load) { l.Hot, l.Own, l.Ready = 4999, 4999, 4999 }), None, at(time.Minute)},
		{"a table that holds next to nothing is not cut at once", start, with(func(l *Load) { l.Hot, l.Own, l.Ready = 5000, 249, 249 }), None, at(time.Minute)},
		{"but it is after a tenth of the interval", at(6 * time.Second), with(func(l *Load) { l.Hot, l.Own, l.Ready = 5000, 249, 249 }), Pressure, time.Time{}},
		{"a table most of whose rows are not encoded is not cut", at(6 * time.Second), with(func(l *Load) { l.Hot, l.Own, l.Ready = 9999, 9999, 4999 }), None, at(time.Minute)},
		{"but it is when half of them are", start, with(func(l *Load) { l.Hot, l.Own, l.Ready = 9999, 9999, 5000 }), Pressure, time.Time{}},
		{"an operator need not wait", start, with(func(l *Load) { l.Asked = true }), Asked, time.Time{}},
		{"shutdown takes what is there", start, with(func(l *Load) { l.Stopping = true }), Stopping, time.Time{}},
		{"progress without rows waits longer than the interval", at(time.Hour), Load{Since: start}, None, at(24 * time.Hour)},
		{"progress without rows waits a day where retention is unknown", at(24 * time.Hour), Load{Since: start}, Progress, time.Time{}},
		{"progress without rows waits a quarter of the retention", at(15 * time.Minute), Load{Since: start, Retention: time.Hour}, Progress, time.Time{}},
		{
			"a short retention pulls rows forward too", at(10 * time.Second),
			with(func(l *Load) { l.Retention = 2 * time.Minute }), None, at(30 * time.Second),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reason, ask := policy.Decide(tt.now, tt.load)
			require.Equal(t, tt.want, reason)
			require.True(t, tt.ask.Equal(ask), "ask again at %v, want %v", ask, tt.ask)
		})
	}
}

func TestEmptyAfterIsConfigurableButNeverAboveADay(t *testing.T) {
	start := time.Unix(0, 0)
	_, ask := Policy{EmptyAfter: time.Minute}.Decide(start, Load{Since: start})
	require.Equal(t, start.Add(time.Minute), ask)
	_, ask = Policy{EmptyAfter: 100 * time.Hour}.Decide(start, Load{Since: start})
	require.Equal(t, start.Add(MaxEmpty), ask)
}

func TestZeroBoundsAreNoBounds(t *testing.T) {
	start := time.Unix(0, 0)
	reason, _ := Policy{Interval: time.Hour}.Decide(start, Load{Since: start, SinceRows: start, Rows: 1 << 40, Encoded: 1 << 40, Hot: 1 << 40})
	require.Equal(t, None, reason)
}
