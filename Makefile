# Everything the project is built, tested and measured with. `make check` is what
# CI runs; it installs what the tests need, at pinned versions.
export CGO_ENABLED = 0
# without the folder in what is compiled, one clone uses what another has in the cache, and the tests what the release has
export GOFLAGS := $(shell go env GOFLAGS) -trimpath

GOLANGCI = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0
VULNDB ?= https://vuln.go.dev
# a count of inputs, or a time; a time ends now and then with "context deadline
# exceeded", which is the fuzzer's own clock and no finding
FUZZTIME   ?= 200000x
# package:target of each fuzz test
FUZZ = protocol:FuzzScan protocol:FuzzEnvelope host:FuzzFrame host:FuzzHandshake \
       host/config:FuzzConfig host/schema:FuzzNormalise host/guard/redact:FuzzRedact plugins/tools:FuzzPath plugins/tools:FuzzURL plugins/toolkits:FuzzOpenAPI plugins/skill:FuzzSkill plugins/mcp/link:FuzzRead \
       plugins/memory/embed:FuzzWords plugins/learning:FuzzDurations plugins/chains/jmes:FuzzDecode plugins/chains/jmes:FuzzEval plugins/multiagent/worker:FuzzOutput \
       plugins:FuzzFiles $(FUZZHOST)
# of these, the ones whose every input is a host, or a store, of its own: they get a tenth of the inputs
FUZZHOST = plugins/mcp:FuzzServer plugins:FuzzRequests plugins:FuzzDialects plugins:FuzzImport plugins:FuzzHTTP

.PHONY: help build dist test race golden fuzz soak bench benchmarks recall regret workflows check fmt walls lint vulnerabilities tools postgresql chromium shells

help: ## what there is
	@sed -n 's/^\([a-z]*\):.*## /\1  /p' Makefile

build: ## the binary, static, in this folder
	go build -trimpath -ldflags '-s -w' -o a2e .

# the same bytes from the same sources and Go, whatever folder and machine they lie on
dist: ## what is released, into dist/: archives for each system, packages for npm and pip, checksums, …
	@set -e; for os in linux darwin windows; do echo "vet for $$os"; GOOS=$$os GOARCH=amd64 go vet ./...; done
	rm -rf dist && go run ./host/cli/dist $(if $(URL),-url $(URL))

.PHONY: newcomer
newcomer: ## plays a newcomer's first hour in an empty folder: clones, builds, and shows each command and its time; CHECK=1 tests as well
	GOMODCACHE=$$(go env GOMODCACHE) testdata/newcomer/newcomer.sh $(CURDIR)

test: tools ## the tests, quick
	go test ./...

# the race detector needs a C compiler; `vet` has looked at the code already
RACE := $(if $(shell command -v cc),-race)
# what only computes, shares nothing and is not ours takes three times as long with it: the C of SQLite as Go, and what packs and parses
COMPUTES = compress/flate regexp regexp/syntax modernc.org/sqlite/lib github.com/santhosh-tekuri/jsonschema/v6 \
	github.com/go-json-experiment/json/jsontext github.com/go-json-experiment/json/internal/jsonwire
NORACE = $(if $(RACE),$(COMPUTES:%=-gcflags=%=-race=false))

# tests wait more than they work: more at once than there are processors
CORES = $$(getconf _NPROCESSORS_ONLN)
WIDE = -p $$(($(CORES) + 1)) -parallel $$(($(CORES) * 2))

race: tools ## the tests as CI runs them
	@test -n '$(RACE)' || echo 'no C compiler here: the tests run without the race detector'
	@built=$$(mktemp -d) && trap 'rm -rf "$$built"' EXIT && \
	A2E_TEST_BUILT=$$built GORACE=atexit_sleep_ms=0 CGO_ENABLED=$(if $(RACE),1,0) go test -vet=off -ldflags=-w $(WIDE) $(RACE) $(NORACE) ./...

golden: ## the golden sessions; `make golden UPDATE=1` writes them anew
	go test ./host ./host/cli -run 'TestGolden' $(if $(UPDATE),-update)

# what the fuzzer finds interesting is kept here; without, each run begins with the seeds
CORPUS ?= $$(go env GOCACHE)/fuzz/a2e
fuzz: ## each fuzz target for FUZZTIME
	@$(MAKE) --no-print-directory -j $(CORES) -O $(addprefix fuzz/,$(sort $(foreach f,$(FUZZ),$(firstword $(subst :, ,$(f))))))

fuzz/%:
	@built=$$(mktemp -d) && trap 'rm -rf "$$built"' EXIT && \
	go test -vet=off -ldflags=-w -c -fuzz . -o "$$built/test" ./$* && for f in $(patsubst $*:%,%,$(filter $*:%,$(FUZZ))); do \
	  n=$(FUZZTIME); case "$$n $(FUZZHOST) " in *x\ *"$*:$$f "*) n=$$(($${n%x} / 10))x;; esac; \
	  echo "fuzz $* $$f $$n"; (cd $* && "$$built/test" -test.run '^$$' -test.fuzz "^$$f\$$" -test.fuzztime $$n -test.fuzzminimizetime 1x \
	    -test.fuzzcachedir "$(or $(CORPUS),$$built/corpus)/$*") || exit 1; \
	done

SECONDS ?= 7200
SEED ?= $(shell date +%s)
soak: ## the simulator for SECONDS, from SEED on: drawn lines and faults in all protocols; SECONDS=1 SEED=n plays one seed again
	A2E_SIM_SEED=$(SEED) A2E_SIM_SECONDS=$(SECONDS) go test ./host/cli -run TestSimulation -count=1 -timeout $$(($(SECONDS) + 1800))s -v

bench: ## this host against a bare line echo and an MCP server, side by side
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	go build -o "$$dir/lineecho" ./host/hosttest/peers/lineecho && \
	go build -o "$$dir/mcpecho" ./host/hosttest/peers/mcpecho && \
	go run ./host/hosttest/bench --short --vs "$$dir/mcpecho" --vs "$$dir/lineecho" -- "$$dir/a2e" serve

benchmarks: ## the Go benchmarks: starts of children, a memory of 100,000 entries, the fleet, chains, …
	go test -run '^$$' -bench . ./...

recall: testdata/recall/venv/.made ## what the memory's search finds, and how fast, beside others
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	testdata/recall/venv/bin/python3 testdata/recall/recall.py "$$dir/a2e" $(RECALL)

workflows: testdata/workflows/venv/.made ## chains beside LangGraph and plain Python; writes the table in plugins/chains/README.md
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	testdata/workflows/venv/bin/python3 testdata/workflows/compare.py "$$dir/a2e" plugins/chains/README.md

.PHONY: servers
servers: testdata/peers/venv/.made ## what twelve MCP servers list directly and behind the gateway; needs the network and minutes
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	python3 testdata/servers/compare.py "$$dir/a2e" $(SERVERS)

regret: tools ## what it costs to learn which tool is the best, beside numpy; writes the table in plugins/learning/README.md
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	testdata/gym/venv/bin/python3 plugins/learning/testdata/regret.py "$$dir/a2e" plugins/learning/README.md

.PHONY: pictures
pictures: chromium ## record the pictures of the README again
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	python3 testdata/pictures/record.py "$$dir/a2e" testdata/pictures

fmt: ## format the code
	go run $(GOLANGCI) fmt ./...

walls: ## every attack test as root, as an ordinary user, and without namespaces
	go run ./host/hosttest/walls

lint: ## the format and all checks of the code by golangci-lint, and go.mod with go.sum
	go mod verify
	go mod tidy -e -diff
	go run $(GOLANGCI) run ./...

# no part of check: it needs the network, and the answer is another one each day
vulnerabilities: ## what the Go vulnerability database knows of all that is called; VULNDB=file:///… is a copy of it
	go run $(GOVULNCHECK) -db $(VULNDB) ./...

TOOLS = testdata/readme/node_modules testdata/peers/node_modules testdata/recipes/node_modules testdata/inspect/node_modules testdata/gym/venv testdata/peers/venv testdata/recipes/venv testdata/a2a/venv testdata/a2a03/venv

tools: $(TOOLS:=/.made) postgresql chromium shells ## what the tests need beyond Go, python3 and node
postgresql:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || \
	{ apt-get update && apt-get install -y --no-install-recommends postgresql; }
chromium:
	@command -v chromium >/dev/null || { apt-get update && apt-get install -y --no-install-recommends chromium; }
shells: # what reads the completions and the man page
	@command -v zsh >/dev/null && command -v fish >/dev/null && command -v mandoc >/dev/null || \
	{ apt-get update && apt-get install -y --no-install-recommends zsh fish mandoc; }
testdata/%/node_modules/.made: testdata/%/package.json
	npm install --prefix $(<D) --no-package-lock --no-audit --no-fund --silent
	touch $@

testdata/%/venv/.made: testdata/%/requirements.txt
	python3 -m venv $(@D)
	$(@D)/bin/python3 -m pip install --quiet --no-input --disable-pip-version-check -r $<
	touch $@

check: ## lint, race and a taste of each fuzz target, with the time of each
	@for step in lint race fuzz; do \
	  echo "== $$step"; began=$$(date +%s); $(MAKE) --no-print-directory $$step $(if $(filter command line,$(origin FUZZTIME)),,FUZZTIME=1000x CORPUS=) || exit 1; \
	  echo "== $$step took $$(($$(date +%s) - began)) s"; \
	done
