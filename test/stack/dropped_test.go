package stack

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/discovery"
)

// A table that somebody drops stops its pipeline, also across a restart of the committer, and says why. An operator who
// wants it anew gets every record once, from the beginning (G9).
func TestADroppedTableStaysAwayUntilAnOperatorRenewsIt(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 2, 3000, 0)
	w.start()
	l.wait()
	w.settle("shop.orders", "orders")
	w.drop("shop", "orders")
	w.restart(discovery.Committer)
	w.restart(discovery.Ingest) // it asks for its tables when it starts
	w.red(discovery.Committer, "shop.orders", "dropped or renamed", "icestream renew shop.orders")

	admin := committerv1.NewAdminServiceClient(w.dial(discovery.Committer))
	_, err := admin.RenewTable(t.Context(), &committerv1.RenewTableRequest{Table: "shop.orders"})
	require.NoError(t, err)
	w.eventually(func() error {
		if why := w.reasons(discovery.Ingest); !strings.Contains(why, "drop or rename it too") {
			return fmt.Errorf("ingest says: %s", why)
		}
		return nil
	})
	w.drop("shop", "orders__quarantine")
	w.restart(discovery.Buffer)
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", l.ledger)
	w.ready()
}

// drop drops a table as another engine would.
func (w *world) drop(namespace, name string) {
	w.t.Helper()
	url := fmt.Sprintf("http://%s/v1/namespaces/%s/tables/%s", local(w.ports.catalog), namespace, name)
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodDelete, url, http.NoBody)
	require.NoError(w.t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(w.t, err)
	require.NoError(w.t, res.Body.Close())
	require.Less(w.t, res.StatusCode, 300)
}
