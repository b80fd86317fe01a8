package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"github.com/icestream/icestream/internal/devpeers"
	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/devpeers/kafka"
	"github.com/icestream/icestream/internal/devpeers/registry"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
)

// Ports of the embedded peers and services on 127.0.0.1; 0 takes a free one.
type Ports struct {
	Kafka, Registry, Catalog, Metrics    int
	Ingest, Buffer, Committer, Readstate int
}

// peers are the embedded Kafka, registry and catalog.
type peers struct {
	kafka    *kafka.Broker
	registry *registry.Server
	catalog  *catalog.Server
}

// startPeers starts all three in dir, or none.
func startPeers(ctx context.Context, dir string, ports Ports, log *slog.Logger) (p *peers, err error) {
	p = &peers{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
			p = nil
		}
	}()
	broker := kafka.Config{Dir: filepath.Join(dir, "kafka"), Port: ports.Kafka, AutoCreate: partitions, Logger: log}
	if p.kafka, err = kafka.Start(broker); err != nil {
		return p, taken(err, "--kafka-port")
	}
	if p.registry, err = registry.Start(registry.Config{File: filepath.Join(dir, "registry.json"), Port: ports.Registry, Logger: log}); err != nil {
		return p, taken(err, "--registry-port")
	}
	if p.catalog, err = catalog.Start(ctx, catalog.Config{Dir: dir, Port: ports.Catalog, Logger: log}); err != nil {
		return p, taken(err, "--catalog-port")
	}
	return p, nil
}

// taken names the flag that moves a port which somebody else holds.
func taken(err error, flag string) error {
	if errors.Is(err, devpeers.ErrPortInUse) {
		return fault.New(fault.InvalidArgument, "%w: choose another one with %s, or 0 for a free one", err, flag)
	}
	return err
}

// takenService does the same for the addresses that the services and the metrics
// listen on.
func takenService(err error, ports Ports) error {
	var op *net.OpError
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) {
		return err
	}
	at, ok := op.Addr.(*net.TCPAddr)
	if !ok {
		return err
	}
	for _, p := range []struct {
		port int
		flag string
	}{
		{ports.Metrics, "--metrics-port"},
		{ports.Ingest, "--ingest-port"},
		{ports.Buffer, "--buffer-port"},
		{ports.Committer, "--committer-port"},
		{ports.Readstate, "--readstate-port"},
	} {
		if p.port == at.Port {
			return run.WithCode(run.CannotTell, fault.New(fault.InvalidArgument,
				"port %d is in use: choose another one with %s, or 0 for a free one", at.Port, p.flag))
		}
	}
	return err
}

func (p *peers) close() error {
	var errs []error
	if p.catalog != nil {
		errs = append(errs, p.catalog.Close())
	}
	if p.registry != nil {
		errs = append(errs, p.registry.Close())
	}
	if p.kafka != nil {
		errs = append(errs, p.kafka.Close())
	}
	return errors.Join(errs...)
}

// register puts a Protobuf schema under a subject and returns its id.
func (p *peers) register(ctx context.Context, subject, text string) (uint32, error) {
	body, err := json.Marshal(map[string]string{"schemaType": "PROTOBUF", "schema": text})
	if err != nil {
		return 0, fmt.Errorf("registering the schema of the orders: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.registry.URL()+"/subjects/"+subject+"/versions", bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("registering the schema of the orders: %w", err)
	}
	req.Header.Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("registering the schema of the orders: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return 0, errors.Join(fmt.Errorf("registering the schema of the orders: %s: %s", res.Status, answer), err)
	}
	var id struct {
		ID uint32 `json:"id"`
	}
	if err := json.Unmarshal(answer, &id); err != nil {
		return 0, fmt.Errorf("registering the schema of the orders: %w", err)
	}
	return id.ID, nil
}
