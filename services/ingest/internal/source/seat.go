package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/file"
)

// seat is a place in a group that a process takes for as long as it lives, with the
// member id that it has there. A process that was killed leaves a member behind for
// which the group would wait until its session times out; the next one on the same
// folder takes the seat, reads the id, and has that member leave at once.
//
// The lock of the seat ends with its process, however it ends, so only the id of a
// dead one is ever read: a process that is frozen keeps its seat, and its successor
// takes another.
type seat struct {
	path string // of the file that holds the member id
	lock io.Closer
	dead string // the member id that was found

	mu   sync.Mutex
	mine string // the member id that is in the file
}

// maxSeats bounds the processes that share a folder.
const maxSeats = 64

// takeSeat takes the first free seat of a group in dir.
func takeSeat(dir, group string) (*seat, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("taking a seat in group %s: %w", group, err)
	}
	var failed error
	for n := range maxSeats {
		path := filepath.Join(dir, fmt.Sprintf("%s.%d", safeName(group), n))
		lock, err := file.OS{}.Lock(path + ".lock")
		if err != nil {
			failed = err
			continue
		}
		s := &seat{path: path, lock: lock}
		if text, err := os.ReadFile(path); err == nil {
			s.dead = strings.TrimSpace(string(text))
		}
		return s, nil
	}
	return nil, fmt.Errorf("taking a seat in group %s: none of %d is free: %w", group, maxSeats, failed)
}

// safeName keeps letters, digits, points and dashes of a group's name; two groups
// that become one only find no seat of their own in the other's way.
func safeName(group string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, group)
}

// note writes down the member id of this process.
func (s *seat) note(id string) error {
	if s == nil || id == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == s.mine {
		return nil
	}
	if err := os.WriteFile(s.path, []byte(id+"\n"), 0o644); err != nil { //nolint:gosec // no secret
		return err
	}
	s.mine = id
	return nil
}

// leave gives the seat up; left says that the member has left the group.
func (s *seat) leave(left bool) {
	if s == nil {
		return
	}
	if left {
		_ = os.Remove(s.path) // one that stays names a member that is gone, which does no harm
	}
	_ = s.lock.Close()
}

// dismiss has the member leave whose seat this process took. It tries until that is
// done or the group would have noticed by itself.
func (c *Consumer) dismiss(ctx context.Context) {
	if c.seat == nil || c.seat.dead == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, max(c.cfg.SessionTimeout, time.Minute))
	defer cancel()
	pause := backoff.Policy{Initial: 100 * time.Millisecond, Max: time.Second, Factor: 2, Jitter: 0.5}.Start()
	for {
		err := c.expel(ctx, c.seat.dead)
		if err == nil {
			c.cfg.Log.Info("the member that this process was before it died has left the group", "group", c.cfg.Group, "member", c.seat.dead)
			return
		}
		if errors.Is(err, kerr.UnknownMemberID) || ctx.Err() != nil {
			return
		}
		c.cfg.Log.Debug("an earlier member of this process is still in the group", "group", c.cfg.Group, "error", err)
		if backoff.Sleep(ctx, pause.Next()) != nil {
			return
		}
	}
}

// expel has one member leave the group.
func (c *Consumer) expel(ctx context.Context, id string) error {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = c.cfg.Group, id // brokers before 2.4 read MemberID
	reason := "the process was killed and has been started again"
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID, m.Reason = id, &reason
	req.Members = append(req.Members, m)
	resp, err := req.RequestWith(ctx, c.fetch)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return err
	}
	for _, m := range resp.Members {
		if err := kerr.ErrorForCode(m.ErrorCode); err != nil {
			return err
		}
	}
	return nil
}

// remember writes down under which id this process is in the group.
func (c *Consumer) remember(id string) {
	if err := c.seat.note(id); err != nil {
		c.cfg.Log.Warn("the member id cannot be kept: after a kill the group waits for a session timeout", "error", err)
	}
}
