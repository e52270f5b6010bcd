# make help lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := build

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOTOOL := $(GO) tool -modfile=tools.mod
TESTFLAGS ?=

# Its cache remembers files by absolute path: two checkouts of one machine must not share it.
export GOLANGCI_LINT_CACHE := $(CURDIR)/.deps/golangci-lint

# What tools/deps.sh built or unpacked comes first: links into the user's cache folder.
export PATH := $(CURDIR)/.deps/usr/bin:$(PATH)

.PHONY: build
build: ## bin/gpumeter, without cgo, with the dashboard where npm is
	@if command -v npm >/dev/null && $(MAKE) web/node_modules/.package-lock.json; then $(MAKE) web; \
	elif [ -e internal/hub/ui/dist/index.html ]; then echo "build: Node.js and npm are missing: the page is the one that was built before" >&2; \
	else echo "build: Node.js and npm are missing, so the hub of bin/gpumeter has no page: it serves a note that says so, its API, gpumeter top and gpumeter report work." >&2; \
	echo "build: install Node.js 18 or later with npm and run make build again; released binaries have the page." >&2; fi
	GO='$(GO)' tools/lean.sh build bin/gpumeter -ldflags '-X main.version=$(VERSION)'

# A single use of html/template, or of reflect's Method by a name that is not constant, makes the linker keep every
# exported method: 8 MB more.
MAXSIZE := 52000000

# The tag makes the compiler refuse a binary without the page.
.PHONY: release
release: ## bin/release: the binaries of a release, always with the page
	@command -v npm >/dev/null || { echo "release: Node.js and npm are missing, and a release has the page" >&2; exit 1; }
	$(MAKE) web
	@for arch in amd64 arm64; do \
		echo "release: bin/release/gpumeter-linux-$$arch $(VERSION)"; \
		GO='$(GO)' GOOS=linux GOARCH=$$arch TAGS=release tools/lean.sh build bin/release/gpumeter-linux-$$arch -ldflags '-s -w -X main.version=$(VERSION)'; \
		size=$$(stat -c %s bin/release/gpumeter-linux-$$arch); \
		[ $$size -le $(MAXSIZE) ] || { echo "release: it has $$size bytes, more than $(MAXSIZE): see docs/adr/0023-hollow-modules.md" >&2; exit 1; }; \
	done

.PHONY: image
image: release ## bin/image: the container image for amd64 and arm64 as an OCI layout, and its software bill of materials; no Docker, no root
	GO='$(GO)' VERSION='$(VERSION)' tools/image.sh

.PHONY: image-test
image-test: ## the tests of what makes the image, which is a module of its own
	CGO_ENABLED=0 $(GO) -C tools/image vet ./...
	CGO_ENABLED=0 $(GO) -C tools/image test ./...

.PHONY: image-packages
image-packages: ## take the current packages of Debian for make image
	GO='$(GO)' VERSION='$(VERSION)' tools/image.sh --update

# The larger build: an OpenTelemetry Collector with our components and many stock ones. The first
# build compiles 2,000 packages.
.PHONY: collector
collector: ## bin/gpumeter-collector: the build with more Collector components, see docs/collector.md
	@mkdir -p bin/collector
	@sed -e 's|gomod: github.com/gpumeter/gpumeter v0.0.0|&\n    path: $(CURDIR)|' -e 's|output_path: .*|output_path: $(CURDIR)/bin/collector|' \
		-e 's|version: 0.0.0|version: $(VERSION)|' cmd/gpumeter-collector/builder.yaml >bin/collector/builder.yaml
	CGO_ENABLED=0 $(GOTOOL) builder --config bin/collector/builder.yaml --skip-compilation
	cd bin/collector && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -tags remove_all_sd -ldflags '-s -w' -o ../gpumeter-collector .

# What npm installs, and what is made of it: the page that the binary serves.
web/node_modules/.package-lock.json: web/package.json web/package-lock.json web/.npmrc
	cd web && npm ci --silent --ignore-scripts && touch node_modules/.package-lock.json

internal/hub/ui/dist/index.html: web/node_modules/.package-lock.json web/build.mjs web/tsconfig.json $(wildcard web/src/*)
	cd web && npm run --silent check && npm run --silent build

.PHONY: web
web: internal/hub/ui/dist/index.html ## the dashboard: types checked, built into internal/hub/ui/dist

.PHONY: demo
demo: build ## build, then show it work with this machine's GPUs or simulated ones
	bin/gpumeter demo $(DEMOFLAGS)

# Tests that run programs wait more than they work, so more of them run at once than there are cores.
# Those that take long have a short form here (testing.Short) and their whole one in make e2e.
# To save time: temporary files are in memory if there is enough; GOGC spends more memory in tests,
# linkers and the agents that tests start; no test needs DWARF (-w); and mdatagen's tests of what it
# generated run with the race detector only.
.PHONY: test
test: bin/testsum ## the shipped code path: no cgo, no root
	@tools/deps.sh --try gcc promtool
	GOGC=400 CGO_ENABLED=0 bin/testsum -memory -short -p 8 -parallel 16 -ldflags=-w $(TESTFLAGS) $$(go list ./... | grep -v /internal/metadata$$)

.PHONY: race
race: bin/testsum ## the same tests with cgo and the race detector
	@tools/deps.sh gcc
	@tools/deps.sh --try promtool
	CGO_ENABLED=1 bin/testsum -race -short -parallel 16 -ldflags=-w $(TESTFLAGS) ./...

.PHONY: e2e
e2e: bin/testsum ## with the real Prometheus, VictoriaMetrics, Collector builder, inference engines and, as root, kubelet, Kueue and Slurm; and long tests whole
	@tools/e2e.sh $(TESTFLAGS)

.PHONY: e2e-all
e2e-all: bin/testsum ## e2e, also with other queueing systems, then every test whole with the race detector; takes an hour and more
	@tools/e2e.sh --all $(TESTFLAGS)
	@tools/deps.sh gcc
	CGO_ENABLED=1 bin/testsum -each -race -count 1 -timeout 60m $(TESTFLAGS) ./...

.PHONY: e2e-kernels
e2e-kernels: ## the tracer's probes on Linux 6.1, 6.12, 6.18 and the newest, on amd64 and arm64, emulated; takes half an hour
	@tools/kernels.sh $(KERNELS)

.PHONY: e2e-kernels-short
e2e-kernels-short: ## a few of these tests on the oldest and the newest, at once; takes minutes
	@tools/kernels.sh --short 6.1 newest

.PHONY: worlds
worlds: ## bills of 10,000 random fleets with second agents, clock steps, late samples and restarts; takes an hour and more
	CGO_ENABLED=0 $(GO) test -count 1 -timeout 6h ./internal/cost ./internal/hub/days -run 'TestBillCannotExplode|TestKeptIsComputed' -worlds $(or $(WORLDS),5000)

.PHONY: bench
bench: collector ## what the agent costs, beside the bare driver calls, and knowing whose work it is; takes minutes
	@tools/deps.sh gcc
	CGO_ENABLED=0 $(GO) test -tags bench -count 1 -timeout 60m -v ./bench/agent ./bench/attribution ./bench/readers ./bench/hub ./bench/inference ./bench/scheduler ./bench/spans $(BENCHFLAGS)

.PHONY: bin/testsum
bin/testsum:
	@CGO_ENABLED=0 $(GO) build -buildvcs=false -o $@ ./tools/testsum

.PHONY: lint
lint: ## gofmt, golangci-lint, tidy modules, the types of the page where npm is
	@out=$$(gofmt -l bench cmd e2e exporter extension hollow internal processor receiver tools); [ -z "$$out" ] || { echo "not formatted, run make fmt:"; echo "$$out"; exit 1; }
	$(GO) mod tidy -diff
	$(GOTOOL) golangci-lint run --allow-parallel-runners ./...
	@tools/deps.sh --try npm
	@if command -v npm >/dev/null && $(MAKE) web/node_modules/.package-lock.json; then cd web && npm run --silent check; \
	elif [[ ",$${GPUMETER_REQUIRE:-}," == *,npm,* ]]; then echo "lint: GPUMETER_REQUIRE asks for npm" >&2; exit 1; \
	else echo "lint: the types of the page are not checked, which needs Node.js and npm" >&2; fi

.PHONY: fmt
fmt: ## format all Go files
	$(GOTOOL) golangci-lint fmt ./...

.PHONY: generate
generate: ## what is made from metadata.yaml, from tables in the code and, with clang, from bpf/
	@tools/deps.sh clang
	$(GO) generate ./...
	$(GO) test ./receiver/gpureceiver -run '^TestAttributesDocument$$' -count 1 -update
	$(GO) test ./internal/local -run '^TestHardwareDocument$$' -count 1 -update
	$(GO) test ./internal/health -run '^TestXIDDocument$$' -count 1 -update
	$(GO) test ./internal/inference -run '^TestEnginesDocument$$' -count 1 -update
	$(GO) test ./receiver/schedulerreceiver -run '^TestWordsDocument$$' -count 1 -update
	$(GO) test ./internal/cli -run '^TestFlagsDocument$$' -count 1 -update
	$(GO) test ./exporter/pageexporter -run '^TestMetricsDocument$$' -count 1 -update

GOLDEN := ./exporter/pageexporter ./internal/cli ./internal/cli/tui ./internal/device/nvidia ./receiver/cudareceiver ./receiver/gpureceiver
.PHONY: golden
golden: ## rewrite the golden files, to be read before they are committed
	@$(GO) test $(GOLDEN) -run 'Golden|Frames' -count 1 -update >/dev/null || true # some fail on purpose
	$(GO) test $(GOLDEN) -run 'Golden|Frames' -count 1

# Compared with the tree as it was, not with the last commit: it works before one, too.
.PHONY: generated
generated: ## fail if make generate changes anything
	@list() { git ls-files -z --cached --others --exclude-standard | xargs -0 sha256sum 2>/dev/null | sort -k 2; }; \
	before=$$(list) || true; $(MAKE) generate; after=$$(list) || true; \
	[ -n "$$before" ] || { echo "not a git checkout"; exit 1; }; \
	diff <(echo "$$before") <(echo "$$after") || { echo "generated files were out of date: commit what make generate made"; exit 1; }

.PHONY: cross
cross: ## build for every platform that is supported
	CGO_ENABLED=0 GOOS=linux GOARCH=amd64 $(GO) build ./...
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $(GO) build ./...

.PHONY: check
check: ## all that a change must pass: lint, generated, cross, image-test, test, race
	$(MAKE) lint
	$(MAKE) generated
	$(MAKE) cross
	$(MAKE) image-test
	$(MAKE) test
	$(MAKE) race

.PHONY: tidy
tidy: ## go mod tidy for go.mod and tools.mod
	$(GO) mod tidy
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	cp tools.mod "$$dir/go.mod"; cp tools.sum "$$dir/go.sum"; \
	(cd "$$dir" && $(GO) mod tidy); \
	cp "$$dir/go.mod" tools.mod; cp "$$dir/go.sum" tools.sum

.PHONY: deps
deps: ## install what the tests use beside Go; the only target that installs
	tools/deps.sh gcc git promtool prometheus

.PHONY: clean
clean: ## remove what was built here; the cache of all clones stays: rm -rf ~/.cache/gpumeter
	rm -rf bin .deps web/node_modules
	find internal/hub/ui/dist -type f ! -name placeholder.html -delete

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
