// Package catalog is the Iceberg catalog of `icestream dev`: a full read-write REST catalog server on loopback over a
// SQLite file and a local warehouse folder.
//
// The SQLite file is an ordinary SQL catalog named "icestream" (CatalogName), so after the server has ended any engine
// that knows SQL catalogs can open it, for instance pyiceberg's SqlCatalog("icestream", uri="sqlite:///…/catalog.db").
// Locations are plain file:// paths that nothing encodes.
//
// A commit is a compare-and-swap on the table's metadata location: requirements are checked against the state that the
// swap replaces, a conflict answers 409 and changes nothing. Commits run one after another and are carried to their end
// even if the client has gone, as a real server does. transactions/commit checks the requirements of all tables first and
// then commits them one by one: a crash of this process in between leaves the earlier ones committed.
package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/apache/iceberg-go"
	sqlcat "github.com/apache/iceberg-go/catalog/sql"
	_ "modernc.org/sqlite" // the pure Go driver, registered as "sqlite"

	"github.com/icestream/icestream/internal/devpeers"
	"github.com/icestream/icestream/internal/icefile"
)

// CatalogName is the name under which tables are kept in the SQLite file.
const CatalogName = "icestream"

// commitTimeout bounds the work of one commit, which goes on when its client has gone.
const commitTimeout = 30 * time.Second

// Config says where the catalog keeps its state and where it listens.
type Config struct {
	// Dir holds catalog.db and the folder warehouse; it is created if it does not exist.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// Logger gets failures that no client sees; nil discards.
	Logger *slog.Logger
}

// Server is a running catalog server. It is safe for concurrent use.
type Server struct {
	cat       *sqlcat.Catalog
	db        *sql.DB
	dbPath    string
	warehouse string // file:// location without a trailing slash
	log       *slog.Logger
	http      *devpeers.HTTPServer
	known     known

	// commits serialises changes of tables, so that between the check of the requirements and the swap no other commit
	// of this process comes in. Another process on the same file is still caught by the swap itself.
	commits sync.Mutex
}

// Start opens or creates the catalog in its folder and serves it. A taken port is devpeers.ErrPortInUse.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s.http, err = devpeers.ServeHTTP(cfg.Port, s.Handler())
	if err != nil {
		return nil, fmt.Errorf("starting the embedded catalog: %w", errors.Join(err, s.closeState()))
	}
	s.log.Info("embedded catalog is listening", "url", s.URL(), "warehouse", s.warehouse, "database", s.dbPath)
	return s, nil
}

// Open opens or creates the catalog in its folder without listening anywhere: only Handler answers.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	s, err := open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("starting the embedded catalog: %w", err)
	}
	return s, nil
}

// CheckFolder refuses a folder, an absolute path, that cannot hold a warehouse.
func CheckFolder(dir string) error {
	if escaped := (&url.URL{Path: dir}).EscapedPath(); escaped != dir {
		// Some readers decode locations and others do not; a path that is the same both ways is read by all.
		return fmt.Errorf("folder %q cannot hold a warehouse: engines disagree on how to write such a path "+
			"in a file:// location: want one without spaces, %%, ?, # and non-ASCII letters", dir)
	}
	return nil
}

func open(ctx context.Context, cfg Config) (*Server, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil || cfg.Dir == "" {
		return nil, fmt.Errorf("folder %q is not usable: %w", cfg.Dir, errors.Join(err, os.ErrInvalid))
	}
	if err := CheckFolder(dir); err != nil {
		return nil, err
	}
	warehouse := filepath.Join(dir, "warehouse")
	if err := os.MkdirAll(warehouse, 0o755); err != nil {
		return nil, fmt.Errorf("creating the warehouse folder: %w", err)
	}
	icefile.Register()
	s := &Server{dbPath: filepath.Join(dir, "catalog.db"), warehouse: "file://" + warehouse, log: cfg.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.db, err = sql.Open("sqlite", "file:"+s.dbPath+"?_txlock=immediate"+
		"&_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", s.dbPath, err)
	}
	s.db.SetMaxOpenConns(4)
	if err := s.db.PingContext(ctx); err != nil {
		return nil, fmt.Errorf("opening %s: %w", s.dbPath, errors.Join(err, s.db.Close()))
	}
	s.cat, err = sqlcat.NewCatalog(CatalogName, s.db, sqlcat.SQLite, iceberg.Properties{"warehouse": s.warehouse})
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", s.dbPath, errors.Join(err, s.db.Close()))
	}
	return s, nil
}

// URL is the catalog's address for clients, http://host:port.
func (s *Server) URL() string { return s.http.URL() }

// Warehouse is the file:// location below which tables are made.
func (s *Server) Warehouse() string { return s.warehouse }

// DatabasePath is the SQLite file.
func (s *Server) DatabasePath() string { return s.dbPath }

// Close finishes running requests and closes the SQLite file.
func (s *Server) Close() error {
	var err error
	if s.http != nil {
		err = s.http.Close()
	}
	s.commits.Lock() // a commit whose client has gone may still run
	defer s.commits.Unlock()
	return errors.Join(err, s.closeState())
}

func (s *Server) closeState() error { return errors.Join(s.cat.Close(), s.db.Close()) }

// Handler routes the REST specification's paths. There is no prefix: /v1/config sets none.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, route := range s.routes() {
		mux.HandleFunc(route.pattern, s.serve(route.handle))
	}
	mux.HandleFunc("/", s.serve(func(r *http.Request) (any, error) {
		return nil, &apiError{
			code: http.StatusNotFound, kind: "NotFoundException",
			message: fmt.Sprintf("%s %s is not an endpoint of this catalog", r.Method, r.URL.Path),
		}
	}))
	return mux
}

// route is one endpoint: its pattern for the mux and its name in the specification, which /v1/config advertises.
type route struct {
	pattern    string
	advertised string
	handle     func(*http.Request) (any, error)
}

func (s *Server) routes() []route {
	const ns, tables, tbl = "/v1/namespaces/{ns}", "/v1/namespaces/{ns}/tables", "/v1/namespaces/{ns}/tables/{table}"
	const adNS, adTables = "/v1/{prefix}/namespaces/{namespace}", "/v1/{prefix}/namespaces/{namespace}/tables"
	return []route{
		{"GET /v1/config", "", s.config},
		{"GET /v1/namespaces", "GET /v1/{prefix}/namespaces", s.listNamespaces},
		{"POST /v1/namespaces", "POST /v1/{prefix}/namespaces", s.createNamespace},
		{"GET " + ns, "GET " + adNS, s.loadNamespace},
		{"HEAD " + ns, "HEAD " + adNS, s.headNamespace},
		{"DELETE " + ns, "DELETE " + adNS, s.dropNamespace},
		{"POST " + ns + "/properties", "POST " + adNS + "/properties", s.updateNamespace},
		{"POST " + ns + "/register", "POST " + adNS + "/register", s.registerTable},
		{"GET " + tables, "GET " + adTables, s.listTables},
		{"POST " + tables, "POST " + adTables, s.createTable},
		{"GET " + tbl, "GET " + adTables + "/{table}", s.loadTable},
		{"HEAD " + tbl, "HEAD " + adTables + "/{table}", s.headTable},
		{"POST " + tbl, "POST " + adTables + "/{table}", s.commitTable},
		{"DELETE " + tbl, "DELETE " + adTables + "/{table}", s.dropTable},
		{"POST " + tbl + "/metrics", "POST " + adTables + "/{table}/metrics", s.acceptMetrics},
		{"POST /v1/tables/rename", "POST /v1/{prefix}/tables/rename", s.renameTable},
		{"POST /v1/transactions/commit", "POST /v1/{prefix}/transactions/commit", s.commitTransaction},
	}
}

func (s *Server) config(*http.Request) (any, error) {
	var endpoints []string
	for _, r := range s.routes() {
		if r.advertised != "" {
			endpoints = append(endpoints, r.advertised)
		}
	}
	return map[string]any{
		"defaults": map[string]string{}, "overrides": map[string]string{}, "endpoints": endpoints,
	}, nil
}
