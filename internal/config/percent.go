package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Percent is a share of 1 to 100 percent; as text it carries the sign, "50%". Zero is "off".
type Percent int

// String returns the share with its sign, or "off".
func (p Percent) String() string {
	if p == 0 {
		return "off"
	}
	return strconv.Itoa(int(p)) + "%"
}

// UnmarshalText reads a share or "off".
func (p *Percent) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	if s == "off" {
		*p = 0
		return nil
	}
	number, signed := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if err != nil || !signed || n < 1 || n > 100 {
		return fmt.Errorf("%q is not a share: write 1%% to 100%%, or off", s)
	}
	*p = Percent(n)
	return nil
}

// Flood says when a topic partition stops because too many of its records are bad.
type Flood struct {
	Share  Percent // of a window; 0 never
	Window int     // records
}

func checkFlood(r *report, path string, f Flood) {
	if f.Window < 10 || f.Window > 1_000_000 {
		r.addf(path+".flood.window", "use 10 to 1000000 records", "%d is out of range", f.Window)
	}
}
