//go:build cloud

package lake

import (
	"context"
	"maps"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	_ "github.com/apache/iceberg-go/catalog/glue"     // registers the catalog type glue
	_ "github.com/apache/iceberg-go/catalog/hive"     // registers the catalog type hive
	_ "github.com/apache/iceberg-go/io/gocloud/azure" // makes abfss:// and wasbs:// locations known
	_ "github.com/apache/iceberg-go/io/gocloud/gcs"   // makes gs:// locations known

	"github.com/icestream/icestream/internal/fault"
)

const cloudBuild = true

// cloudOpener loads a catalog by its registered type, with the operator's
// properties as they are.
func cloudOpener(cfg Config) (opener, error) {
	if cfg.Type == "hadoop" {
		return nil, fault.New(fault.Unsupported, "checking catalog.type: hadoop has no safe commit on object stores: use a REST or SQL catalog")
	}
	props := iceberg.Properties{"type": cfg.Type, "uri": cfg.URI, "warehouse": cfg.Warehouse}
	maps.Copy(props, cfg.Properties)
	return func(ctx context.Context) (catalog.Catalog, error) {
		return catalog.Load(ctx, cfg.Name, props)
	}, nil
}
