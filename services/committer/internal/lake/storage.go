package lake

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/apache/iceberg-go/utils"
	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/icestream/icestream/internal/s3file"
)

// storage adds the S3 settings to ctx: without them the library makes a client
// with new connections for every operation of a SQL catalog. Credentials that a
// catalog vends for a table still win.
func (l *Lake) storage(ctx context.Context) context.Context {
	if !strings.HasPrefix(l.cfg.Warehouse, "s3") && l.cfg.Properties[iceio.S3EndpointURL] == "" {
		return ctx
	}
	cfg, err := l.s3.get(ctx, l.cfg)
	if err != nil {
		l.log.Warn("the S3 settings cannot be read: the library's own are used", "error", err)
		return ctx
	}
	return utils.WithAwsConfig(ctx, cfg)
}

// s3Config is made once.
type s3Config struct {
	mu  sync.Mutex
	cfg *aws.Config
}

func (c *s3Config) get(ctx context.Context, lake Config) (*aws.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg != nil {
		return c.cfg, nil
	}
	own := map[string]string{}
	for k, v := range lake.Properties {
		if strings.HasPrefix(k, "s3.") || strings.HasPrefix(k, "client.") {
			own[k] = v
		}
	}
	var err error
	c.cfg, err = s3file.Config(context.WithoutCancel(ctx), own)
	return c.cfg, err
}

// exists reports whether a file is there. An error means that nobody knows.
func exists(files iceio.IO, path string) (bool, error) {
	_, there, err := sizeOf(files, path)
	return there, err
}

// sizeOf is the size of a file in bytes, and whether it is there. An error means
// that nobody knows.
func sizeOf(files iceio.IO, path string) (size int64, there bool, err error) {
	var info fs.FileInfo
	if s, ok := files.(iceio.StatIO); ok {
		info, err = s.Stat(path)
	} else {
		var f iceio.File
		if f, err = files.Open(path); err == nil {
			info, err = f.Stat()
			err = errors.Join(err, f.Close())
		}
	}
	switch {
	case err == nil:
		return info.Size(), true, nil
	case errors.Is(err, fs.ErrNotExist):
		return 0, false, nil
	default:
		return 0, false, err
	}
}

// remove removes a file; one that is not there is no error.
func remove(files iceio.IO, path string) error {
	err := files.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if there, statErr := exists(files, path); statErr == nil && !there {
		return nil
	}
	return err
}

// DeleteFiles removes data files. Call it only when it is proven that no
// snapshot names them and none can (G6). What cannot be removed is logged and
// left: a file too many harms nobody. It reports whether all are gone: a record
// that names them must outlive them.
func (t *Table) DeleteFiles(ctx context.Context, list []File) bool {
	paths := make([]string, len(list))
	for i, f := range list {
		paths[i] = f.Path
	}
	return t.deletePaths(ctx, paths) == nil
}

// deletePaths removes files and logs each that stays; its error is that of the first.
func (t *Table) deletePaths(ctx context.Context, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	files, err := t.files(t.lake.storage(ctx))
	if err != nil {
		t.log.Warn("files that nothing names stay", "files", len(paths), "error", err)
		return err
	}
	var first error
	for i, p := range paths {
		if err := context.Cause(ctx); err != nil {
			t.log.Warn("files that nothing names stay", "files", len(paths)-i, "error", err)
			return classify(err, "removing files of table %s", t.name)
		}
		if err := remove(files, p); err != nil {
			t.log.Warn("a file that nothing names stays", "file", p, "error", err)
			if first == nil {
				first = classify(err, "removing %s", p)
			}
		}
	}
	return first
}

// dropOldMetadata removes the metadata files that a commit pushed out of the
// table's log. REST catalogs do that themselves; for the others it is the
// client's duty, and the library does it only in its own commit.
func (t *Table) dropOldMetadata(ctx context.Context, before, after table.Metadata) {
	if t.cat.CatalogType() != "sql" || after == nil || !after.Properties().GetBool(table.MetadataDeleteAfterCommitEnabledKey, false) {
		return
	}
	kept := map[string]bool{}
	for entry := range after.PreviousFiles() {
		kept[entry.MetadataFile] = true
	}
	var gone []string
	for entry := range before.PreviousFiles() {
		if !kept[entry.MetadataFile] {
			gone = append(gone, entry.MetadataFile)
		}
	}
	_ = t.deletePaths(ctx, gone) // it is logged
}
