package obs

import (
	"fmt"
	"io"
	"log/slog"
)

// NewLogger returns a logger that writes to w; format is "json" or "text", level "debug", "info", "warn" or "error".
// Times are in UTC. Messages are static texts, what varies is in attributes; nothing is logged per record.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("making a logger: the level %q is not known: use debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: least, ReplaceAttr: utc}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	default:
		return nil, fmt.Errorf("making a logger: the format %q is not known: use json or text", format)
	}
}

func utc(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime {
		a.Value = slog.TimeValue(a.Value.Time().UTC())
	}
	return a
}
