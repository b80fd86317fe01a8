package commit

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/ident"
)

// head is a look that found the given snapshot and no commit of ours.
func headAt(id int64) Looked { return Looked{SnapshotID: id, SchemaID: 1, Epoch: 5} }

func TestAttempt(t *testing.T) {
	accepted, refused, unknown := Sent{Accepted}, Sent{Refused}, Sent{Unknown}
	denied := Sent{Forbidden}
	found := Looked{Found: true, SnapshotID: 11, SchemaID: 1, Epoch: 5}
	failed := Looked{Failed: true}
	type step struct {
		ev   Event
		want Effect
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"an accepted commit counts only once it was seen", []step{{accepted, Look}, {found, Landed}}},
		{"an accepted commit that is not seen is sent again, not planned again", []step{{accepted, Look}, {headAt(10), Send}, {refused, Look}, {found, Landed}}},
		{"accepted, not seen, and refused from then on: never free, the base is left on purpose", []step{
			{accepted, Look},
			{headAt(10), Send},
			{refused, Look},
			{headAt(10), Send},
			{refused, Look},
			{headAt(10), Send},
			{refused, Look},
			{headAt(10), Displace},
			{found, Landed},
		}},
		{"accepted and looked for in vain is no doubt yet", []step{{accepted, Look}, {failed, Look}, {found, Landed}}},
		{"C1: applied, answer lost: the look finds it, nothing is added twice", []step{{unknown, Look}, {found, Landed}}},
		{"C2: applied and an error: nothing is deleted", []step{{unknown, Look}, {failed, Look}, {failed, Look}, {found, Landed}}},
		{"C4: a late request: absence now proves nothing", []step{{unknown, Look}, {headAt(10), Send}, {unknown, Look}, {headAt(10), Send}}},
		{"C20: unknown and not applied, then accepted", []step{{unknown, Look}, {headAt(10), Send}, {accepted, Look}, {found, Landed}}},
		{"ambiguity is sticky: refusals after it do not settle it", []step{
			{unknown, Look},
			{headAt(10), Send},
			{refused, Look},
			{headAt(10), Send},
			{refused, Look},
			{headAt(10), Send},
		}},
		{"ambiguity that is refused at a head that stands is settled by displacing it", []step{
			{unknown, Look},
			{headAt(10), Send},
			{refused, Look},
			{headAt(10), Send},
			{refused, Look},
			{headAt(10), Send},
			{refused, Look},
			{headAt(10), Displace},
			{failed, Look},
			{headAt(10), Displace},
			{headAt(11), Rejected},
		}},
		{"a request that was on its way may be quicker than the empty snapshot", []step{
			{unknown, Look}, {headAt(10), Send}, {refused, Look}, {Looked{SnapshotID: 10, SchemaID: 2, Epoch: 5}, Displace}, {found, Landed},
		}},
		{"ambiguous, and the schema changed by others without a snapshot: displaced at the first refusal", []step{
			{unknown, Look}, {Looked{SnapshotID: 10, SchemaID: 2, Epoch: 5}, Send}, {refused, Look}, {Looked{SnapshotID: 10, SchemaID: 2, Epoch: 5}, Displace},
		}},
		{"a denial ends an attempt", []step{{denied, Look}, {failed, Look}, {headAt(10), Denied}}},
		{"unless it was a conflict: the head moved", []step{{denied, Look}, {headAt(12), Rejected}}},
		{"unless it was a conflict: the schema moved", []step{{denied, Look}, {Looked{SnapshotID: 10, SchemaID: 2, Epoch: 5}, Restage}}},
		{"unless it is there after all", []step{{denied, Look}, {found, Landed}}},
		{"a denial after an answer that was lost settles nothing", []step{{unknown, Look}, {headAt(10), Send}, {denied, Look}, {headAt(10), Send}}},
		{"an answer that is lost after a conflict takes the denial back", []step{{refused, Look}, {headAt(10), Send}, {unknown, Look}, {headAt(10), Send}}},
		{"ambiguity is settled by the head leaving the base", []step{{unknown, Look}, {headAt(10), Send}, {unknown, Look}, {headAt(12), Rejected}}},
		{"a conflict with another snapshot is a rejection", []step{{refused, Look}, {headAt(12), Rejected}}},
		{"C10: a catalog that answers 409 for a while is offered the same again", []step{{refused, Look}, {headAt(10), Send}, {refused, Look}, {headAt(10), Send}, {accepted, Look}, {found, Landed}}},
		{"C10: 409 for ever without a foreign snapshot: staged anew", []step{{refused, Look}, {headAt(10), Send}, {refused, Look}, {headAt(10), Send}, {refused, Look}, {headAt(10), Restage}}},
		{"a schema changed by others without a snapshot: staged anew", []step{{refused, Look}, {Looked{SnapshotID: 10, SchemaID: 2, Epoch: 5}, Restage}}},
		{"but not while a request may be on its way", []step{{unknown, Look}, {Looked{SnapshotID: 10, SchemaID: 2, Epoch: 5}, Send}}},
		{"a higher writer epoch fences", []step{{refused, Look}, {Looked{SnapshotID: 12, SchemaID: 1, Epoch: 6}, Fenced}}},
		{"a commit that landed before the fence counts", []step{{unknown, Look}, {Looked{Found: true, SnapshotID: 12, SchemaID: 1, Epoch: 6}, Landed}}},
		{"a catalog that is away is asked without end", []step{{unknown, Look}, {failed, Look}, {failed, Look}, {failed, Look}, {failed, Look}, {headAt(10), Send}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := NewAttempt(Base{SnapshotID: 10, SchemaID: 1, Epoch: 5})
			for i, s := range tt.steps {
				require.Equal(t, s.want, a.Next(s.ev), "step %d", i)
			}
		})
	}
}

// TestAttemptNeverGivesFilesFreeThatMayLand is G6 and G1 for the machine alone:
// a naive catalog applies requests at once, late or never; the machine may call
// an attempt rejected only when no request of it can land any more, and landed
// only when one did.
func TestAttemptNeverGivesFilesFreeThatMayLand(t *testing.T) {
	outcomes := map[Effect]int{}
	for seed := range uint64(3000) {
		outcomes[attemptAtANaiveCatalog(t, seed)]++
	}
	for _, e := range []Effect{Landed, Rejected, Restage, Denied} {
		require.NotZero(t, outcomes[e], "%v never came up", e)
	}
}

func attemptAtANaiveCatalog(t *testing.T, seed uint64) Effect {
	const base = int64(10)
	r := rand.New(rand.NewPCG(seed, 1))
	head, landed, inflight := base, false, 0
	apply := func() { // assert-ref-snapshot-id
		if head == base {
			head, landed = base+1, true
		}
	}
	a := NewAttempt(Base{SnapshotID: base, SchemaID: 1, Epoch: 5})
	effect := Send
	for steps := 0; ; steps++ {
		require.Less(t, steps, 10_000, "seed %d: the attempt does not end", seed)
		if inflight > 0 && r.IntN(4) == 0 {
			inflight--
			apply()
		}
		if r.IntN(20) == 0 { // a foreign commit
			head += 100
		}
		switch effect {
		case Send:
			effect = a.Next(Sent{answer(r, head == base, apply, &inflight)})
		case Look:
			effect = a.Next(Looked{Failed: r.IntN(3) == 0, Found: landed, SnapshotID: head, SchemaID: 1, Epoch: 5})
		case Displace: // lands, or does not
			if r.IntN(2) == 0 && head == base {
				head = base + 50
			}
			effect = Look
		case Landed:
			require.True(t, landed, "seed %d", seed)
			return effect
		case Rejected:
			require.False(t, landed, "seed %d: rejected although it landed", seed)
			require.NotEqual(t, base, head, "seed %d: a late request could still land", seed)
			return effect
		case Restage, Denied:
			require.False(t, landed, "seed %d", seed)
			require.Zero(t, inflight, "seed %d: %v while a request is on its way", seed, effect)
			return effect
		default:
			require.Fail(t, "unexpected effect", "seed %d: %v", seed, effect)
		}
	}
}

func answer(r *rand.Rand, atBase bool, apply func(), inflight *int) Answer {
	switch r.IntN(8) {
	case 7:
		*inflight++
		return Accepted // arrives later, and the answer was a lie
	case 6:
		return Forbidden
	case 0:
		return Unknown // lost before it arrived
	case 1:
		apply()
		return Unknown // applied, answer lost
	case 2:
		*inflight++
		return Unknown // arrives later
	case 3:
		return Refused // for a reason of its own
	default:
		if !atBase {
			return Refused
		}
		apply()
		return Accepted
	}
}

func TestAttemptIsOverAfterItsOutcome(t *testing.T) {
	a := NewAttempt(Base{SnapshotID: 1, Epoch: ident.WriterEpoch(1)})
	require.Equal(t, Look, a.Next(Sent{Accepted}))
	require.Equal(t, Landed, a.Next(Looked{Found: true}))
	require.Zero(t, a.Next(Sent{Unknown}))
}
