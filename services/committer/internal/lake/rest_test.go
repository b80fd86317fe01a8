package lake

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	devcatalog "github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/testkit/faulty"
)

func newRESTBench(t *testing.T, properties map[string]string) (*bench, *faulty.Catalog) {
	dir := t.TempDir()
	server, err := devcatalog.Start(t.Context(), devcatalog.Config{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	f := faulty.NewCatalog(t, server.URL())
	l, err := Open(t.Context(), Config{
		Type: "rest", URI: f.URL(), Properties: properties, Timeouts: Timeouts{Commit: time.Second},
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	tbl, err := l.Create(t.Context(), tableName, Settings{LSN: true, Kafka: true, Owner: "test", Partition: "day(created_at)"})
	require.NoError(t, err)
	b := &bench{TB: t, lake: l, Table: tbl, dir: dir}
	b.setSchema()
	return b, f
}

func TestTheWholeLifeOfATableThroughAREST(t *testing.T) {
	b, f := newRESTBench(t, map[string]string{"header.X-Team": "shop"})
	require.Equal(t, "shop", f.LastHeader().Get("X-Team"))
	for range 5 {
		c := b.change(KindData)
		r := c.advance(part(0), Totals{Rows: 20})
		poison := c.advance(part(1), Totals{Quarantined: 1})
		c.Files = b.write(b.batch(part(0), r))
		b.poison(&c, quarantined(part(1), poison))
		b.commit(c)
	}
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	b.other().insert(1, nil)
	b.reload()
	b.cleanAt = 1
	c := b.change(KindExpire)
	c.Expire = &ExpirePolicy{Keep: 2}
	for _, p := range c.State.Pipelines {
		p.Pending = nil
	}
	st := b.commit(c)
	require.NoError(t, b.Clean(t.Context(), st))
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
	require.Equal(t, int64(101), b.rows(tableName))
	require.Equal(t, int64(5), b.rows(quarantineName))
}

// C1, C2, C4, C10, C20: what each answer of a catalog means, and that the table is
// exact after each.
func TestEveryAnswerToACommitIsSettledByTheTable(t *testing.T) {
	b, f := newRESTBench(t, nil)
	rows := int64(0)
	for _, c := range []struct {
		fault  faulty.Fault
		again  int // requests that meet the fault: two where a definite no is asked again without copies
		landed bool
		reason fault.Reason
	}{
		{faulty.Refused(409, "CommitFailedException"), 1, false, fault.Conflict},
		{faulty.Applied(409, "CommitFailedException"), 1, true, fault.Conflict},
		{faulty.Refused(400, "BadRequestException"), 2, false, fault.InvalidArgument},
		{faulty.Refused(422, "UnprocessableEntityException"), 2, false, fault.InvalidArgument},
		{faulty.Refused(401, "NotAuthorizedException"), 2, false, fault.Unauthorized},
		{faulty.Refused(403, "ForbiddenException"), 2, false, fault.Unauthorized},
		{faulty.Applied(403, "ForbiddenException"), 2, true, fault.Unauthorized},
		{faulty.Refused(404, "NoSuchTableException"), 1, false, fault.UnknownTable},
		{faulty.Refused(429, "TooManyRequestsException"), 1, false, fault.Unavailable},
		{faulty.Refused(500, "InternalServerError"), 1, false, fault.Unavailable},
		{faulty.Applied(500, "InternalServerError"), 1, true, fault.Unavailable},
		{faulty.Refused(501, "UnsupportedOperationException"), 1, false, fault.Unavailable},
		{faulty.Applied(502, "BadGatewayException"), 1, true, fault.Unavailable},
		{faulty.Refused(503, "ServiceUnavailableException"), 1, false, fault.Unavailable},
		{faulty.Applied(504, "CommitStateUnknownException"), 1, true, fault.Unavailable},
		{faulty.Lost(), 1, false, fault.Unavailable},
		{faulty.Unanswered(), 1, true, fault.Unavailable},
		{faulty.Torn(), 1, true, fault.Unavailable},
		{faulty.Ignored(), 1, false, fault.Unavailable},
		{faulty.Silent(), 1, true, fault.Unavailable},
		{faulty.Slow(100 * time.Millisecond), 1, true, 0},
		{faulty.Pretended(), 1, false, 0},
	} {
		change := b.rowsOf(part(0), 5)
		st := b.stage(change)
		f.Commits(faulty.Script(slices.Repeat([]faulty.Fault{c.fault}, c.again)...))
		err := b.Send(t.Context(), st)
		require.Equal(t, c.reason, fault.ReasonOf(err), "%s: %v", c.fault.Name, err)
		require.Equal(t, c.reason == 0, err == nil, "%s: %v", c.fault.Name, err)
		require.Equal(t, c.again, f.Did()[c.fault.Name], c.fault.Name)
		b.reload()
		require.Equal(t, c.landed, b.Find(change.CommitID), c.fault.Name)
		require.Equal(t, c.landed, b.becomes(st) == Landed, c.fault.Name)
		if !c.landed {
			require.NoError(t, b.Send(t.Context(), st), c.fault.Name)
			b.reload()
		}
		rows += 5
		require.Equal(t, rows, b.rows(tableName), c.fault.Name)
	}
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
}

// C4, G6: in a copy of the table from before a commit's base the head seems to have
// left the base without the commit. Sequence numbers tell such a copy.
func TestAStaleCopyOfTheTableProvesNothing(t *testing.T) {
	b, f := newRESTBench(t, nil)
	b.commitRows(part(0), 3)
	b.commitRows(part(0), 3)
	c := b.rowsOf(part(0), 5)
	st := b.stage(c)
	f.Commits(faulty.Script(faulty.Unanswered()))
	require.Error(t, b.Send(t.Context(), st))
	f.Loads(faulty.Script(faulty.Stale(2), faulty.Stale(1)))
	_, err := b.Reload(t.Context())
	require.ErrorIs(t, err, fault.Of(fault.Unavailable))
	require.ErrorContains(t, err, "an old copy proves nothing")
	require.Equal(t, st.Base, b.Head().SnapshotID, "the head stays what it was")
	b.reload() // as it was when the commit was sent: not there, which proves nothing either
	require.False(t, b.Find(c.CommitID))
	require.Equal(t, st.Base, b.Head().SnapshotID)
	b.reload()
	require.True(t, b.Find(c.CommitID))
}

// A catalog that is in trouble says when it wants to be asked again.
func TestTheCatalogSaysWhenItWantsToBeAskedAgain(t *testing.T) {
	b, f := newRESTBench(t, nil)
	st := b.stage(b.change(KindProgress))
	f.Commits(faulty.Script(faulty.Refused(429, "TooManyRequestsException", "Retry-After", "7")))
	var busy *fault.Error
	require.ErrorAs(t, b.Send(t.Context(), st), &busy)
	require.InDelta(t, 7, busy.RetryAfter.Seconds(), 1)
	require.NoError(t, b.Send(t.Context(), st))
	now := time.Now()
	require.Equal(t, 3*time.Second, retryAfter("3", now))
	require.InDelta(t, 60, retryAfter(now.Add(time.Minute).UTC().Format(http.TimeFormat), now).Seconds(), 1)
	require.Zero(t, retryAfter("soon", now))
}

// G11: a catalog that is away when the service starts.
func TestALakeConnectsWhenItsCatalogComes(t *testing.T) {
	l, err := Open(t.Context(), Config{Type: "rest", URI: "http://127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	_, err = l.Load(t.Context(), tableName)
	require.ErrorIs(t, err, fault.Of(fault.Unavailable))

	server, err := devcatalog.Start(t.Context(), devcatalog.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	l, err = Open(t.Context(), Config{Type: "rest", URI: server.URL()}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, l.Ping(t.Context()))
	_, err = l.Load(t.Context(), tableName)
	require.ErrorIs(t, err, fault.Of(fault.UnknownTable))
}

func TestACancelledCallSaysSo(t *testing.T) {
	b := newBench(t, Settings{})
	st := b.stage(b.change(KindProgress))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.Send(ctx, st), context.Canceled)
}

func TestSkipsAloneMakeAProvenTable(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindProgress)
	c.advance(part(0), Totals{Skipped: map[event.SkipReason]int64{event.SkipFiltered: 9, event.SkipAbsent: 1}})
	b.commit(c)
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
}

// A proxy's page or a login in place of the catalog is said in words, whatever its status.
func TestAnAnswerThatIsNotACatalogsIsNamed(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusBadGateway} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
			_, _ = w.Write([]byte("<html>Please sign in</html>"))
		}))
		l, err := Open(t.Context(), Config{Type: "rest", URI: s.URL}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		err = l.Ping(t.Context())
		require.ErrorIs(t, err, fault.Of(fault.Unavailable))
		require.ErrorContains(t, err, s.URL)
		require.ErrorContains(t, err, "the answer is not a catalog's")
		require.NoError(t, l.Close())
		s.Close()
	}
}
