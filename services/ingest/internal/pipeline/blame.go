package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// Doubter is a Codec that can tell a wrong setting of the pipeline from a record
// that does not belong into the topic.
type Doubter interface {
	// Doubt asks the registry what the topic holds. A text says which setting is
	// wrong, and how; known is false when the registry has nothing to compare with.
	// An error is the registry's.
	Doubt(ctx context.Context, topic string) (mistake string, known bool, err error)
}

// convinced is how long the word of the registry that the settings are right is
// taken, so that a row of stray records does not ask it each time.
const convinced = time.Minute

// blame decides whose fault a record's error is: a schema that lacks the
// pipeline's message, or is of another format, may be the record's, or the
// configuration's. The latter stops the partition, and nothing goes to quarantine
// for it.
func (s *session) blame(ctx context.Context, err error) error {
	rf, ok := errors.AsType[*RecordError](err)
	if !ok || !rf.noMessage {
		return err
	}
	doubter, ok := s.w.p.c.Codec.(Doubter)
	if !ok || s.t.proven(s.part.Topic) {
		return err
	}
	mistake, known, derr := doubter.Doubt(ctx, s.part.Topic)
	switch {
	case derr != nil:
		return derr
	case mistake == "" && known:
		s.t.convince(s.part.Topic)
		return err
	case mistake == "" && s.t.hasColumns():
		return err // nothing speaks against the settings, and they have made rows before
	case mistake == "":
		mistake = "no record of it has ever been a row"
	}
	return &stopError{fmt.Errorf("the configuration of pipeline %s does not fit topic %s: %s; met with %s. Correct its format or message: setting; the records wait",
		s.w.p.Name(), s.part.Topic, mistake, rf.Text)}
}

// proven reports whether the settings are known to be right for a topic.
func (t *table) proven(topic string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.convinced[topic])
}

func (t *table) convince(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.convinced == nil {
		t.convinced = map[string]time.Time{}
	}
	t.convinced[topic] = time.Now().Add(convinced)
}

// hasColumns reports whether some record has made columns of the table.
func (t *table) hasColumns() bool {
	latest, err := t.newest()
	if err != nil {
		return false
	}
	s := &schema.Schema{}
	return json.Unmarshal(latest.Columns, s) == nil && len(s.Mapped()) > 0
}

// Doubt implements Doubter: it looks at the newest schema of the subjects that
// the usual strategies give the topic.
func (c *Protobuf) Doubt(ctx context.Context, topic string) (mistake string, known bool, err error) {
	var lacking []string
	for _, subject := range c.subjects(topic) {
		ref, err := c.newest(ctx, subject, c.Schemas.ID)
		if errors.Is(err, registry.ErrNotFound) {
			continue
		}
		if err != nil {
			return "", false, registryFault(err)
		}
		what, err := c.lacks(ctx, ref)
		switch {
		case err != nil:
			return "", false, err
		case what == "":
			return "", true, nil
		}
		lacking = append(lacking, "subject "+subject+": "+what)
	}
	return strings.Join(lacking, "; "), len(lacking) > 0, nil
}

// subjects are the names that TopicNameStrategy, RecordNameStrategy and
// TopicRecordNameStrategy give.
func (c *Protobuf) subjects(topic string) []string {
	out := []string{topic + "-value"}
	if c.Message != "" {
		out = append(out, c.Message, topic+"-"+c.Message)
	}
	return out
}

// lacks says why a schema cannot be what the settings mean, "" when it can.
func (c *Protobuf) lacks(ctx context.Context, ref registry.Ref) (string, error) {
	s, err := c.Schemas.Schema(ctx, ref)
	var bad *registry.BadSchemaError
	switch {
	case errors.As(err, &bad) && bad.Type != "":
		return fmt.Sprintf("its schemas are %s, the pipeline's format is protobuf", strings.ToLower(bad.Type)), nil
	case errors.Is(err, registry.ErrBadSchema), errors.Is(err, registry.ErrNotFound):
		return "", nil // a broken schema says nothing about the settings
	case err != nil:
		return "", registryFault(err)
	case c.Message == "":
		return "", nil
	}
	_, missing := s.MessageByName(c.Message)
	if missing != nil {
		return missing.Error(), nil //nolint:nilerr // what is missing is the answer
	}
	return "", nil
}
