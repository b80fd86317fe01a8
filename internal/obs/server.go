package obs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Server serves /metrics, /healthz, /readyz and /debug/pprof.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen opens the address (node.metrics) for the metrics and health of this process. A taken port is an error that
// names the address.
func Listen(ctx context.Context, address string, m *Metrics, h *Health, log *slog.Logger) (*Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("opening the metrics address %s (node.metrics): %w", address, err)
	}
	return &Server{listener: l, http: &http.Server{
		Handler:           Handler(m, h),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

// Address returns the address in use, with the port that was chosen where it was 0.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Run serves until the context ends.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	err := s.http.Serve(s.listener)
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving metrics at %s: %w", s.Address(), err)
}

// Handler returns the handler behind Server, for tests and other servers. /readyz answers 200 or 503 and the Report
// of all components, or of one service with ?service=NAME; /healthz answers 503 only after Health.Fail.
func Handler(m *Metrics, h *Health) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.Registry(), promhttp.HandlerOpts{Registry: m.Registry()}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		r := h.Report("")
		respond(w, r.Failed == "", map[string]any{"alive": r.Failed == "", "failed": r.Failed})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		r := h.Report(req.URL.Query().Get("service"))
		respond(w, r.Ready, r)
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

func respond(w http.ResponseWriter, ok bool, body any) {
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(body) // the client is gone; there is nobody to tell
}
