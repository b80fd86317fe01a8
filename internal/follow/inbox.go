package follow

import (
	"fmt"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/wire"
)

// inbox sorts the messages of one stream: it assembles images, checks that
// events have no gap, and passes notices on.
type inbox struct {
	*follower
	image *event.Image // being assembled, nil otherwise
	hot   int64        // entries that the image announced
	open  bool         // the first message came
	moved bool         // the handler took in an image or an event
}

// take handles one message. An error means that the stream cannot be trusted
// any more, or that the handler refused.
func (in *inbox) take(fr *wire.FollowFrame) error {
	if !in.open {
		in.open = true
		in.h.Notice(Notice{Up: true})
	}
	if fr.Entry != nil {
		return in.takeAppend(fr.Seq, fr.Entry)
	}
	if fr.Msg == nil {
		return fault.New(fault.Corrupt, "a message without content")
	}
	switch m := fr.Msg.GetMessage().(type) {
	case *bufferv1.FollowResponse_ImageBegin:
		return in.beginImage(fr.Seq, m.ImageBegin)
	case *bufferv1.FollowResponse_ImageEnd:
		return in.endImage(fr.Seq)
	case *bufferv1.FollowResponse_Commit:
		c, err := wire.CommitFromProto(m.Commit)
		if err != nil {
			return fmt.Errorf("reading commit event %d: %w", fr.Seq, err)
		}
		return in.deliver(event.Event{Seq: fr.Seq, Commit: &c})
	case *bufferv1.FollowResponse_Schema:
		s, err := wire.SchemaFromProto(m.Schema)
		if err != nil {
			return fmt.Errorf("reading schema event %d: %w", fr.Seq, err)
		}
		return in.deliver(event.Event{Seq: fr.Seq, Schema: &s})
	case *bufferv1.FollowResponse_Epoch:
		c, err := wire.CommitFromProto(m.Epoch)
		if err != nil {
			return fmt.Errorf("reading epoch event %d: %w", fr.Seq, err)
		}
		return in.deliver(event.Event{Seq: fr.Seq, Epoch: &event.Epoch{Commit: c}})
	default:
		return in.takeNotice(fr.Msg)
	}
}

// takeNotice passes on what is no part of the log. Unknown messages are news of
// a newer buffer that this follower can do without, unless they are numbered:
// then they are events, and leaving one out would be a gap.
func (in *inbox) takeNotice(msg *bufferv1.FollowResponse) error {
	switch m := msg.GetMessage().(type) {
	case *bufferv1.FollowResponse_Heartbeat:
	case *bufferv1.FollowResponse_EpochWanted:
		in.h.Notice(Notice{EpochWanted: &EpochWanted{
			Nonce:          m.EpochWanted.GetNonce(),
			Reason:         m.EpochWanted.GetReason(),
			AppendsWaiting: m.EpochWanted.GetAppendsWaiting(),
		}})
	case *bufferv1.FollowResponse_Progress:
		list := make([]event.Progress, 0, len(m.Progress.GetPartitions()))
		for _, pb := range m.Progress.GetPartitions() {
			p, err := wire.ProgressFromProto(pb)
			if err != nil {
				return fmt.Errorf("reading progress: %w", err)
			}
			list = append(list, p)
		}
		in.h.Notice(Notice{Progress: list})
	case *bufferv1.FollowResponse_Pins:
		in.h.Notice(Notice{Pins: &Pins{
			SnapshotID:     m.Pins.GetOldestSnapshotId(),
			SequenceNumber: m.Pins.GetOldestSequenceNumber(),
		}})
	default:
		if msg.GetSeq() != 0 {
			return fault.New(fault.Unsupported, "event %d is of a kind that this version does not know: update this service", msg.GetSeq())
		}
	}
	return nil
}

// beginImage starts an image; whatever was known stays untouched until it is
// whole.
func (in *inbox) beginImage(seq event.Seq, pb *bufferv1.ImageBegin) error {
	img := event.Image{Seq: seq}
	if copy(img.Boot[:], pb.GetBoot()) != len(img.Boot) || img.Boot.IsZero() {
		return fault.New(fault.Corrupt, "an image without a boot id: %x", pb.GetBoot())
	}
	var err error
	if img.Commit, err = wire.CommitFromProto(pb.GetCommit()); err != nil {
		return fmt.Errorf("reading the commit of an image: %w", err)
	}
	for _, s := range pb.GetSchemas() {
		sch, err := wire.SchemaFromProto(s)
		if err != nil {
			return fmt.Errorf("reading a schema of an image: %w", err)
		}
		img.Schemas = append(img.Schemas, sch)
	}
	if img.Ended, err = wire.EndedEpochsFromProto(pb.GetEnded()); err != nil {
		return fmt.Errorf("reading the ended epochs of an image: %w", err)
	}
	in.image, in.hot = &img, pb.GetHot()
	return nil
}

// takeAppend adds a hot entry to the image under way, or is an event.
func (in *inbox) takeAppend(seq event.Seq, e *event.Append) error {
	if in.image == nil {
		return in.deliver(event.Event{Seq: seq, Append: e})
	}
	if int64(len(in.image.Hot)) >= in.hot {
		return fault.New(fault.Corrupt, "an image announced %d hot entries and brought more", in.hot)
	}
	in.image.Hot = append(in.image.Hot, e)
	return nil
}

// endImage hands a whole image over. Its number may come with either end of it.
func (in *inbox) endImage(seq event.Seq) error {
	img := in.image
	if img == nil {
		return fault.New(fault.Corrupt, "the end of an image that never began")
	}
	if int64(len(img.Hot)) != in.hot {
		return fault.New(fault.Corrupt, "an image announced %d hot entries and brought %d", in.hot, len(img.Hot))
	}
	img.Seq = max(img.Seq, seq)
	in.image = nil
	if err := in.h.Image(*img); err != nil {
		return fmt.Errorf("taking in an image: %w", err)
	}
	in.whole, in.boot, in.seq, in.moved = true, img.Boot, img.Seq, true
	in.Log.Info("following", "table", in.Table, "boot", img.Boot, "seq", uint64(img.Seq), "hot_entries", len(img.Hot),
		"snapshot", img.Commit.SnapshotID, "log_epoch", int64(img.Commit.LogEpoch))
	return nil
}

// deliver hands an event over if it is the next one. One that the handler has
// taken in already is left out; a gap ends the stream.
func (in *inbox) deliver(ev event.Event) error {
	switch {
	case in.image != nil:
		return fault.New(fault.Corrupt, "event %d came within an image", ev.Seq)
	case !in.whole:
		return fault.New(fault.Corrupt, "event %d came before an image", ev.Seq)
	case ev.Seq <= in.seq:
		return nil
	case ev.Seq != in.seq+1:
		return fault.New(fault.Corrupt, "event %d came after event %d: a gap", ev.Seq, in.seq)
	}
	if err := in.h.Event(ev); err != nil {
		return fmt.Errorf("taking in event %d: %w", ev.Seq, err)
	}
	in.seq, in.moved = ev.Seq, true
	return nil
}
