package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
)

// Policies for records that cannot be rows.
const (
	policyQuarantine = "quarantine"
	policyStop       = "stop"
	policySkip       = "skip"
)

// policy is what becomes of bad records, with the revision that entries made under
// it carry: the log must not take one policy's entry for another's.
type policy struct {
	name     string
	revision uint64
}

// with is the revision of entries, given the schemas that were looked up.
func (p *policy) with(pins string) uint64 {
	if pins == "" {
		return p.revision
	}
	return xxh3.HashString(fmt.Sprintf("%x %s", p.revision, pins))
}

// recordsError stops a partition because of records that cannot be rows.
type recordsError struct {
	text  string
	flood bool // because of too many of them
}

func (e *recordsError) Error() string { return e.text }

// errPolicy ends a session whose policy is not in force any more.
var errPolicy = errors.New("the policy for bad records was switched")

// StoppedPartition is a topic partition that stands still because of bad records.
type StoppedPartition struct {
	Topic  string
	Number int32
	Reason string
}

// PolicyStatus is what becomes of the bad records of a pipeline.
type PolicyStatus struct {
	Policy     string
	Configured string
	Stopped    []StoppedPartition // because of bad records
}

// Policy says what is in force.
func (p *Pipeline) Policy() PolicyStatus {
	return PolicyStatus{
		Policy: p.policy.Load().name, Configured: p.c.Pipeline.OnInvalid, Stopped: p.stoppedByRecords(false),
	}
}

// SetPolicy switches to quarantine, stop or skip for as long as this process
// lives. Records that are on their way to the log keep the fate that they had;
// partitions that stopped for a bad record, or for too many, look at it again.
func (p *Pipeline) SetPolicy(name string) error {
	if !slices.Contains([]string{policyQuarantine, policyStop, policySkip}, name) {
		return fault.New(fault.InvalidArgument, "switching pipeline %s: %q is no policy: use quarantine, stop or skip", p.Name(), name)
	}
	was := p.policy.Swap(&policy{name: name, revision: p.revision(name)})
	p.c.Log.Warn("policy for bad records switched; a restart returns to the configuration", "was", was.name, "is", name,
		"configured", p.c.Pipeline.OnInvalid)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		w.mu.Lock()
		if w.records != nil && w.records.flood { // what is to become of them was decided anew
			w.allow.Store(true)
		}
		w.mu.Unlock()
		w.retryNow()
	}
	return nil
}

func (p *Pipeline) revision(name string) uint64 {
	if p.c.RevisionOf == nil || name == p.c.Pipeline.OnInvalid {
		return p.c.Revision
	}
	return p.c.RevisionOf(name)
}

// AllowFlood lets partitions go on that stopped because too many records were
// bad, and returns those. The guard of each partition is armed again once a whole
// window of it is below the share.
func (p *Pipeline) AllowFlood() []StoppedPartition {
	out := p.stoppedByRecords(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		w.allow.Store(true)
		w.retryNow()
	}
	p.c.Log.Warn("flood of bad records allowed", "partitions", len(out))
	return out
}

func (p *Pipeline) stoppedByRecords(floods bool) []StoppedPartition {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []StoppedPartition
	for tp, w := range p.workers {
		w.mu.Lock()
		if w.state == event.PartitionStopped && w.records != nil && (w.records.flood || !floods) {
			out = append(out, StoppedPartition{Topic: tp.Topic, Number: tp.Number, Reason: w.reason})
		}
		w.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b StoppedPartition) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Number - b.Number)
	})
	return out
}
