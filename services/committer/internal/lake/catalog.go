package lake

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	sqlcat "github.com/apache/iceberg-go/catalog/sql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the PostgreSQL driver of the sql catalog
	_ "modernc.org/sqlite"             // and its SQLite driver

	"github.com/icestream/icestream/internal/fault"
)

// openerOf checks cfg as far as that is possible without a network.
func openerOf(cfg Config, m *manners) (opener, error) {
	if err := checkScheme(cfg.Warehouse); err != nil {
		return nil, err
	}
	switch cfg.Type {
	case "rest":
		if u, err := url.Parse(cfg.URI); err != nil || u.Host == "" {
			return nil, fault.New(fault.InvalidArgument, "checking catalog.uri: %q is no URL: want http(s)://host[:port][/path]", cfg.URI)
		}
		return func(ctx context.Context) (catalog.Catalog, error) { return openREST(ctx, cfg, m) }, nil
	case "sql":
		return sqlOpener(cfg)
	case "glue", "hive", "hadoop":
		return cloudOpener(cfg)
	default:
		return nil, fault.New(fault.InvalidArgument, "checking catalog.type: %q is not known: want rest, sql, glue or hive", cfg.Type)
	}
}

// checkScheme refuses a warehouse that this build has no file access for.
func checkScheme(warehouse string) error {
	scheme, _, found := strings.Cut(warehouse, "://")
	if !found {
		return nil
	}
	switch scheme {
	case "file", "s3", "s3a", "s3n":
		return nil
	case "gs", "abfs", "abfss", "wasb", "wasbs":
		if cloudBuild {
			return nil
		}
		return needsCloud("catalog.warehouse", warehouse)
	default:
		return fault.New(fault.InvalidArgument, "checking catalog.warehouse: scheme %q of %q is not known: want file, s3, gs or abfss", scheme, warehouse)
	}
}

func needsCloud(setting, value string) error {
	return fault.New(fault.Unsupported, "checking %s: %q needs the cloud build: build with -tags cloud", setting, value)
}

// The library dials without any limit, so a frozen catalog would hold a call for
// ever; these are the belt to the deadline that every call carries.
const (
	dialTimeout   = 5 * time.Second
	headerTimeout = 60 * time.Second
	idleTimeout   = 90 * time.Second
)

func transport(skipVerify bool) *http.Transport {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout:       idleTimeout,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
	}
	if skipVerify {
		t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the operator asked for it by rest.tls.skip-verify
	}
	return t
}

func openREST(ctx context.Context, cfg Config, m *manners) (catalog.Catalog, error) {
	props := iceberg.Properties{}
	var opts []rest.Option
	skipVerify := false
	var region, service string
	sigv4 := false
	for key, v := range cfg.Properties {
		switch key {
		case "credential":
			opts = append(opts, rest.WithCredential(v))
		case "token":
			opts = append(opts, rest.WithOAuthToken(v))
		case "scope":
			opts = append(opts, rest.WithScope(v))
		case "audience":
			opts = append(opts, rest.WithAudience(v))
		case "resource":
			opts = append(opts, rest.WithResource(v))
		case "prefix":
			opts = append(opts, rest.WithPrefix(v))
		case "oauth2-server-uri":
			u, err := url.Parse(v)
			if err != nil {
				return nil, fault.New(fault.InvalidArgument, "checking catalog property %s: %w", key, err)
			}
			opts = append(opts, rest.WithAuthURI(u))
		case "rest.sigv4-enabled":
			sigv4 = strings.EqualFold(v, "true")
		case "rest.signing-region":
			region = v
		case "rest.signing-name":
			service = v
		case "rest.tls.skip-verify":
			skipVerify = strings.EqualFold(v, "true")
		default:
			props[key] = v
		}
	}
	if sigv4 {
		opts = append(opts, rest.WithSigV4RegionSvc(region, service))
	}
	if cfg.Warehouse != "" {
		opts = append(opts, rest.WithWarehouseLocation(cfg.Warehouse))
	}
	if len(props) > 0 {
		opts = append(opts, rest.WithAdditionalProps(props))
	}
	tr, idle := cfg.HTTP, func() {}
	if tr == nil {
		own := transport(skipVerify)
		tr, idle = own, own.CloseIdleConnections
	}
	cat, err := rest.NewCatalog(ctx, cfg.Name, cfg.URI, append(opts, rest.WithCustomTransport(m.over(tr)))...)
	if err != nil {
		idle()
		return nil, err
	}
	return cat, nil
}

// sqliteOptions make concurrent writers wait for each other, and a commit
// survive a power loss once it was acknowledged.
const sqliteOptions = "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=synchronous(FULL)"

// sqlCatalog closes the database that it opened.
type sqlCatalog struct {
	*sqlcat.Catalog
	db *sql.DB
}

func (c *sqlCatalog) Close() error { return errors.Join(c.Catalog.Close(), c.db.Close()) }

// database is what the sql catalog runs on.
type database struct {
	driver, source string // for database/sql
	dialect        sqlcat.SupportedDialect
	shown          string // for people: without a password
}

const sqlForms = "sqlite:///path/catalog.db or postgres://host:5432/database"

// databaseOf reads uri; credential, user:password, is for a server.
func databaseOf(uri, credential string) (database, error) {
	scheme, path, found := strings.Cut(uri, ":")
	switch {
	case !found:
		path = uri
	case scheme == "sqlite" || scheme == "file":
		path = strings.TrimPrefix(path, "//")
	case scheme == "postgres" || scheme == "postgresql":
		u, err := url.Parse(uri)
		if err != nil || u.Host == "" || strings.Trim(u.Path, "/") == "" {
			// The error of the parser would show a password.
			return database{}, fault.New(fault.InvalidArgument, "checking catalog.uri: it names no PostgreSQL database: want postgres://host:5432/database")
		}
		if user, password, both := strings.Cut(credential, ":"); both {
			u.User = url.UserPassword(user, password)
		}
		uri = u.String()
		return database{driver: "pgx", source: uri, dialect: sqlcat.Postgres, shown: u.Redacted()}, nil
	default:
		return database{}, fault.New(fault.InvalidArgument, "checking catalog.uri: the sql catalog does not know %q: want %s", scheme, sqlForms)
	}
	if path == "" {
		return database{}, fault.New(fault.InvalidArgument, "checking catalog.uri: it names no database: want %s", sqlForms)
	}
	return database{driver: "sqlite", source: "file:" + path + sqliteOptions, dialect: sqlcat.SQLite, shown: path}, nil
}

func sqlOpener(cfg Config) (opener, error) {
	d, err := databaseOf(cfg.URI, cfg.Properties["credential"])
	if err != nil {
		return nil, err
	}
	if cfg.Warehouse == "" {
		return nil, fault.New(fault.InvalidArgument, "checking the sql catalog: it needs catalog.warehouse (file:///path or s3://bucket/prefix)")
	}
	props := iceberg.Properties{"warehouse": cfg.Warehouse}
	maps.Copy(props, cfg.Properties)
	delete(props, "credential")
	return func(ctx context.Context) (catalog.Catalog, error) {
		db, err := sql.Open(d.driver, d.source)
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", d.shown, err)
		}
		if err := db.PingContext(ctx); err != nil { // the catalog below makes its tables without a deadline
			return nil, errors.Join(fmt.Errorf("opening %s: %w", d.shown, err), db.Close())
		}
		cat, err := sqlcat.NewCatalog(cfg.Name, db, d.dialect, props)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("opening %s: %w", d.shown, err), db.Close())
		}
		return &sqlCatalog{Catalog: cat, db: db}, nil
	}, nil
}

func unauthorized(err error) bool {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		// Class 28 is a log-in that failed, 42501 a right that is missing
		// (PostgreSQL, appendix A).
		return strings.HasPrefix(refused.Code, "28") || refused.Code == "42501"
	}
	return errors.Is(err, rest.ErrUnauthorized) || errors.Is(err, rest.ErrForbidden) ||
		errors.Is(err, rest.ErrAuthorizationExpired) || errors.Is(err, rest.ErrOAuthError)
}

// denied reports whether a store refuses to show a file.
func denied(err error) bool {
	if answer, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		return answer.HTTPStatusCode() == http.StatusUnauthorized || answer.HTTPStatusCode() == http.StatusForbidden
	}
	return errors.Is(err, fs.ErrPermission)
}

func badRequest(err error) bool { return errors.Is(err, rest.ErrBadRequest) }

// noJSON tells an answer that no catalog gives, such as the page of a proxy or of a login. The library has only words for it.
func noJSON(err error) bool {
	text := err.Error()
	return errors.Is(err, rest.ErrRESTError) && (strings.Contains(text, "error decoding json payload") || strings.Contains(text, "failed to decode error response"))
}

func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
