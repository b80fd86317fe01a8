//go:build e2e

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	records = flag.Int("records", 1_000_000, "good records per run")
	bad     = flag.Int("bad", 80, "bad records per run, of every kind")
	kills   = flag.Bool("kills", true, "kill -9 each service once while records flow")
	keepRun = flag.Bool("keep", false, "leave the peers running and the folder in place")
)

// order is the message of most topics.
const order = "testbed.shop.v1.Order"

// G1, G2, G8, G11: a million records with every kind of poison, each service
// killed once, judged by readers that share no code with us.
func TestEveryRecordLandsOnceThoughEachServiceIsKilled(t *testing.T) {
	b := startBed(t)
	s := b.newSuite(t, plan{name: "plain", topic: "orders", message: order})
	file := filepath.Join(b.dir, "orders.json")
	producer := b.produce(t, "orders", file, false, "--count", strconv.Itoa(*records), "--fast", "--bad", strconv.Itoa(*bad))
	s.startAll()
	s.waitReady(90 * time.Second)
	if *kills {
		for _, svc := range services {
			before := s.committed("shop.orders")
			s.kill9(svc)
			s.eventually(3*time.Minute, "commits go on after the kill of "+svc, func() error {
				if now := s.committed("shop.orders"); now <= before && !s.done("shop.orders", file) {
					return fmt.Errorf("still %d committed", now)
				}
				return nil
			})
		}
	}
	m := producer.wait()
	require.EqualValues(t, *records, m.Rows)
	s.committedIs("shop.orders", []manifest{m}, 10*time.Minute)
	t.Log(s.audit("shop.orders", "--against", "kafka"))
	b.judge(t, "shop.orders", file)
	t.Run("over SASL_SSL", func(t *testing.T) { secureRun(t, b) })
	t.Run("all types", func(t *testing.T) { allTypesRun(t, b) })
}

// Every kind of field in every shape, made by confluent-kafka, read back by pyiceberg and DuckDB and compared value by
// value with what the producer meant.
func TestEveryTypeIsReadBackAsItWasMeant(t *testing.T) { allTypesRun(t, startBed(t)) }

func allTypesRun(t *testing.T, b *bed) {
	out := python(t, "the production of all types", "peers/all_types.py", "produce", "--bootstrap", b.kafka, "--registry", b.registry, "--topic", "all-types")
	var m manifest
	require.NoError(t, json.Unmarshal([]byte(out), &m))
	s := b.newSuite(t, plan{name: "all", topic: "all-types", message: "testbed.all.v1.All"})
	s.startAll()
	s.waitReady(90 * time.Second)
	s.committedIs("shop.all_types", []manifest{m}, 3*time.Minute)
	s.audit("shop.all_types", "--against", "kafka")
	args := append([]string{"peers/all_types.py", "judge"}, b.readers("shop.all_types")...)
	t.Log(python(t, "the judgement of all types", args...))
}

func secureRun(t *testing.T, b *bed) {
	s := b.newSuite(t, plan{name: "secure", topic: "secure-orders", message: order, secure: true})
	file := filepath.Join(b.dir, "secure.json")
	count := min(*records, 20_000)
	m := b.produce(t, "secure-orders", file, true, "--count", strconv.Itoa(count), "--transactional", "--bad", "8").wait()
	s.startAll()
	s.waitReady(90 * time.Second)
	s.committedIs("shop.secure_orders", []manifest{m}, 5*time.Minute)
	s.audit("shop.secure_orders", "--against", "kafka")
	b.judge(t, "shop.secure_orders", file)
}
