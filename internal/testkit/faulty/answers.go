package faulty

import (
	"slices"
	"strings"
	"time"
)

// Answer is what a catalog does to the next commits of each table, and to the loads
// that follow them.
type Answer struct {
	Name           string
	Commits, Loads []Fault
}

// Answers are all kinds of answers that a catalog gives, alone and one after another.
func Answers() []Answer {
	one := func(f Fault) Answer { return Answer{Name: f.Name, Commits: []Fault{f}} }
	var list []Answer
	for code, kind := range map[int]string{
		400: "BadRequestException", 409: "CommitFailedException", 422: "UnprocessableEntityException",
		500: "InternalServerError", 502: "BadGatewayException", 503: "ServiceUnavailableException", 504: "CommitStateUnknownException",
	} {
		list = append(list, one(Refused(code, kind)), one(Applied(code, kind)))
	}
	list = append(list,
		one(Refused(429, "TooManyRequestsException", "Retry-After", "1")), one(Refused(401, "NotAuthorizedException")),
		one(Refused(403, "ForbiddenException")), one(Refused(404, "NoSuchTableException")),
		one(Pretended()), one(Lost()), one(Unanswered()), one(Torn()), one(Slow(300*time.Millisecond)),
	)
	slices.SortFunc(list, func(a, b Answer) int { return strings.Compare(a.Name, b.Name) })
	conflict, bad := Refused(409, "CommitFailedException"), Refused(400, "BadRequestException")
	return append(list,
		Answer{"a conflict again and again", slices.Repeat([]Fault{conflict}, 5), nil},
		Answer{"400 again and again", slices.Repeat([]Fault{bad}, 7), nil},
		Answer{"a lost answer, then conflicts", []Fault{Unanswered(), conflict, conflict}, nil},
		Answer{"lost on the way, then conflicts", []Fault{Lost(), conflict, conflict, conflict, conflict, conflict}, nil},
		Answer{"a yes that was none, then conflicts", []Fault{Pretended(), conflict, conflict, conflict, conflict}, nil},
		Answer{"a lost answer, seen late", []Fault{Unanswered()}, []Fault{Stale(1), Stale(2), Stale(1)}},
		Answer{"a yes, seen late", []Fault{{}}, []Fault{Stale(3), Stale(1), Stale(1)}},
		Answer{"a conflict, seen late", []Fault{conflict}, slices.Repeat([]Fault{Stale(2)}, 4)},
		Answer{"loads fail", []Fault{Applied(500, "InternalServerError")}, []Fault{
			Refused(503, "ServiceUnavailableException"), Lost(), Torn(), Refused(429, "TooManyRequestsException"),
			Slow(200 * time.Millisecond),
		}},
	)
}

// Give has the next commits of each table, and the loads from the first commit on,
// meet what the answer says.
func (c *Catalog) Give(a Answer) {
	commits, loads := ScriptEach(a.Commits...), ScriptEach(a.Loads...)
	c.Commits(func(table string) Fault {
		c.Loads(loads)
		return commits(table)
	})
}

// Missed names the faults of an answer that never came to pass.
func (c *Catalog) Missed(list []Answer) []string {
	did, missed := c.Did(), []string{}
	for _, a := range list {
		for _, f := range slices.Concat(a.Commits, a.Loads) {
			if f.Name != "" && did[f.Name] == 0 {
				missed = append(missed, f.Name)
			}
		}
	}
	return missed
}
