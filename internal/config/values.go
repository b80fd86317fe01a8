package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// redacted stands wherever a secret would be printed.
const redacted = "<redacted>"

// Size is a number of bytes. As text it carries a unit: B, KiB, MiB, GiB, TiB (powers of 1024) or kB, MB, GB, TB
// (powers of 1000).
type Size int64

type unit struct {
	name string
	size int64
}

// units returns all units, binary ones first and each family from large to small, as String needs them.
func units() []unit {
	return []unit{
		{"TiB", 1 << 40},
		{"GiB", 1 << 30},
		{"MiB", 1 << 20},
		{"KiB", 1 << 10},
		{"TB", 1e12},
		{"GB", 1e9},
		{"MB", 1e6},
		{"kB", 1e3},
		{"B", 1},
	}
}

var errSize = errors.New("is not a size: write a number with a unit, such as 64MiB")

// ParseSize reads a size with its unit, such as "512MiB" or "1.5 GB".
func ParseSize(text string) (Size, error) {
	text = strings.TrimSpace(text)
	cut := strings.LastIndexAny(text, "0123456789.") + 1
	number, name := text[:cut], strings.TrimSpace(text[cut:])
	for _, u := range units() {
		if !strings.EqualFold(u.name, name) {
			continue
		}
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			if n < 0 || n > math.MaxInt64/u.size {
				return 0, fmt.Errorf("%q is out of range", text)
			}
			return Size(n * u.size), nil
		}
		f, err := strconv.ParseFloat(number, 64)
		if err != nil || f < 0 || f*float64(u.size) >= math.MaxInt64 {
			return 0, fmt.Errorf("%q %w", text, errSize)
		}
		return Size(f * float64(u.size)), nil
	}
	if text == "0" {
		return 0, nil
	}
	return 0, fmt.Errorf("%q %w", text, errSize)
}

// String returns the size in the largest unit that divides it, preferring powers of 1024.
func (s Size) String() string {
	if s == 0 {
		return "0B"
	}
	for _, u := range units() {
		if int64(s)%u.size == 0 {
			return strconv.FormatInt(int64(s)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// UnmarshalText reads what ParseSize reads.
func (s *Size) UnmarshalText(b []byte) error {
	v, err := ParseSize(string(b))
	if err == nil {
		*s = v
	}
	return err
}

// MarshalText writes what String returns.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// parseDuration reads a duration with units; days are accepted besides Go's units, since retention is said in days.
func parseDuration(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseInt(days, 10, 64); err == nil && n >= 0 && n <= 100_000 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration: write a number with a unit, such as 500ms, 30s, 5m, 2h or 7d", text)
	}
	return d, nil
}

// formatDuration drops the zero parts that time.Duration prints: 1m0s is 1m.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Secret is a text that no print, log or encoder shows: every one of them gives "<redacted>". Only Reveal returns it.
// The zero value is the empty, unset secret. It is kept behind a pointer, so that not even a formatter that reads
// unexported fields by reflection reaches it.
type Secret struct{ text *string }

// NewSecret wraps text.
func NewSecret(text string) Secret { return Secret{&text} }

// Reveal returns the text; hand it to the client that needs it and to nobody else.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsSet reports whether the secret holds any text.
func (s Secret) IsSet() bool { return s.Reveal() != "" }

// String returns "<redacted>", or "" when nothing is set.
func (s Secret) String() string {
	if !s.IsSet() {
		return ""
	}
	return redacted
}

// Format redacts for every verb of fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText redacts for JSON and every other text encoder.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue redacts for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Properties are words that are passed on to a library unchanged, such as the `s3.…` words of Iceberg's file IO.
// Any of them may be a credential, so printing shows only values whose key is known to be harmless.
type Properties map[string]Secret

// Reveal returns the plain texts for the library that needs them.
func (p Properties) Reveal() map[string]string {
	out := make(map[string]string, len(p))
	for k, v := range p {
		out[k] = v.Reveal()
	}
	return out
}

// Get returns the plain text of key, "" where it is not set.
func (p Properties) Get(key string) string { return p[key].Reveal() }

// shown returns the properties as they may be printed.
func (p Properties) shown() map[string]string {
	out := make(map[string]string, len(p))
	for k, v := range p {
		out[k] = v.String()
		if harmless(k) {
			out[k] = v.Reveal()
		}
	}
	return out
}

// harmless reports whether the value of a property may be shown: the last word of its key says what it is. A list of
// what may be shown, not of what must not: an unknown key is kept secret.
func harmless(key string) bool {
	last := key[strings.LastIndexByte(key, '.')+1:]
	switch last {
	case "endpoint", "region", "path-style-access", "force-virtual-addressing", "signer", "sigv4-enabled",
		"signing-region", "signing-name", "connect-timeout", "request-timeout", "scope", "audience", "prefix", "type",
		"format-version", "level", "mode", "compression-codec", "compression-level", "max-retries", "enabled", "dialect":
		return true
	}
	for _, word := range []string{"target-file-size", "num-versions", "num-retries", "max-versions"} {
		if strings.HasPrefix(last, word) {
			return true
		}
	}
	return false
}

// String lists the properties, values redacted where they may be secret.
func (p Properties) String() string {
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(p)) {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s=%s", k, p.shown()[k])
	}
	return b.String()
}

// Format redacts for every verb of fmt.
func (p Properties) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, p.String()) }

// LogValue redacts for slog.
func (p Properties) LogValue() slog.Value { return slog.StringValue(p.String()) }
