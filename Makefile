# The commands that build, test and measure the project. CI runs `make check`, which
# installs the tools of the tests at pinned versions.
export CGO_ENABLED = 0
# -trimpath leaves the folder out of compiled code, so that all clones and the release share one build cache
export GOFLAGS := $(shell go env GOFLAGS) -trimpath

GOLANGCI = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0
VULNDB ?= https://vuln.go.dev
# a count of inputs, or a time; with a time, the fuzzer sometimes ends with "context deadline
# exceeded", which is its own clock and not a finding
FUZZTIME   ?= 200000x
# package:target of each fuzz test
FUZZ = protocol:FuzzScan protocol:FuzzEnvelope host:FuzzFrame host:FuzzHandshake \
       host/config:FuzzConfig host/schema:FuzzNormalise host/guard/redact:FuzzRedact plugins/tools:FuzzPath plugins/tools:FuzzURL plugins/toolkits:FuzzOpenAPI plugins/skill:FuzzSkill plugins/mcp/link:FuzzRead \
       plugins/memory/embed:FuzzWords plugins/learning:FuzzDurations plugins/chains/jmes:FuzzDecode plugins/chains/jmes:FuzzEval plugins/multiagent/worker:FuzzOutput \
       plugins:FuzzFiles $(FUZZHOST)
# fuzz tests that make a new host or store for each input; they get a tenth of the inputs
FUZZHOST = plugins/mcp:FuzzServer plugins:FuzzRequests plugins:FuzzDialects plugins:FuzzImport plugins:FuzzHTTP

.PHONY: help build dist test race golden fuzz soak bench benchmarks recall regret workflows check fmt walls lint vulnerabilities tools postgresql chromium shells

help: ## these targets
	@sed -n 's/^\([a-z]*\):.*## /\1  /p' Makefile

build: ## the binary, static, in this folder
	go build -trimpath -ldflags '-s -w' -o a2e .

# the same sources and the same Go make the same bytes, in any folder and on any machine
dist: ## the release, into dist/: archives for each system, packages for npm and pip, checksums, …
	@set -e; for os in linux darwin windows; do echo "vet for $$os"; GOOS=$$os GOARCH=amd64 go vet ./...; done
	rm -rf dist && go run ./host/cli/dist $(if $(URL),-url $(URL))

.PHONY: newcomer
newcomer: ## plays a newcomer's first hour in an empty folder: clones, builds, and shows each command and its time; CHECK=1 tests as well
	GOMODCACHE=$$(go env GOMODCACHE) testdata/newcomer/newcomer.sh $(CURDIR)

test: tools ## the tests, quick
	go test ./...

# the race detector needs a C compiler; tests run without vet, as lint includes it
RACE := $(if $(shell command -v cc),-race)
# packages of others that only compute and share no data: with the race detector they would take three times as long
COMPUTES = compress/flate regexp regexp/syntax modernc.org/sqlite/lib github.com/santhosh-tekuri/jsonschema/v6 \
	github.com/go-json-experiment/json/jsontext github.com/go-json-experiment/json/internal/jsonwire
NORACE = $(if $(RACE),$(COMPUTES:%=-gcflags=%=-race=false))

# tests wait more than they compute, so more of them run at once than there are processors
CORES = $$(getconf _NPROCESSORS_ONLN)
WIDE = -p $$(($(CORES) + 1)) -parallel $$(($(CORES) * 2))

race: tools ## the tests as CI runs them
	@test -n '$(RACE)' || echo 'no C compiler here: the tests run without the race detector'
	@built=$$(mktemp -d) && trap 'rm -rf "$$built"' EXIT && \
	A2E_TEST_BUILT=$$built GORACE=atexit_sleep_ms=0 CGO_ENABLED=$(if $(RACE),1,0) go test -vet=off -timeout 20m -ldflags=-w $(WIDE) $(RACE) $(NORACE) ./...

golden: ## the golden sessions; `make golden UPDATE=1` writes them again
	go test ./host ./host/hosttest/e2e -run 'TestGolden' $(if $(UPDATE),-update)

# the folder for inputs that the fuzzer found; without a folder, each run begins with the seeds
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
	A2E_SIM_SEED=$(SEED) A2E_SIM_SECONDS=$(SECONDS) go test ./host/hosttest/e2e -run TestSimulation -count=1 -timeout $$(($(SECONDS) + 1800))s -v

bench: ## this host against a bare line echo and an MCP server, side by side
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	go build -o "$$dir/lineecho" ./host/hosttest/peers/lineecho && \
	go build -o "$$dir/mcpecho" ./host/hosttest/peers/mcpecho && \
	go run ./host/hosttest/bench --short --vs "$$dir/mcpecho" --vs "$$dir/lineecho" -- "$$dir/a2e" serve

benchmarks: ## the Go benchmarks: starts of children, a memory of 100,000 entries, the fleet, chains, …
	go test -run '^$$' -bench . ./...

recall: testdata/recall/venv/.made ## the recall and speed of the memory's search, compared with others
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	testdata/recall/venv/bin/python3 testdata/recall/recall.py "$$dir/a2e" $(RECALL)

workflows: testdata/workflows/venv/.made ## chains compared with LangGraph and plain Python; writes the table in plugins/chains/README.md
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	testdata/workflows/venv/bin/python3 testdata/workflows/compare.py "$$dir/a2e" plugins/chains/README.md

.PHONY: servers
servers: testdata/peers/venv/.made ## the tools of twelve MCP servers, directly and behind the gateway; needs the network and some minutes
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	go build -trimpath -ldflags '-s -w' -o "$$dir/a2e" . && \
	python3 testdata/servers/compare.py "$$dir/a2e" $(SERVERS)

regret: tools ## the regret of learning which tool is best, compared with numpy; writes the table in plugins/learning/README.md
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
	go run ./host/hosttest/attacks

lint: ## the format and all checks of the code by golangci-lint, and go.mod with go.sum
	go mod verify
	go mod tidy -e -diff
	go run $(GOLANGCI) run ./...

# not part of check, as it needs the network, and its result changes from day to day
vulnerabilities: ## known vulnerabilities in the code that is called; VULNDB=file:///… uses a copy of the database
	go run $(GOVULNCHECK) -db $(VULNDB) ./...

TOOLS = testdata/readme/node_modules testdata/peers/node_modules testdata/recipes/node_modules testdata/inspect/node_modules testdata/gym/venv testdata/peers/venv testdata/recipes/venv testdata/a2a/venv testdata/a2a03/venv

tools: $(TOOLS:=/.made) postgresql chromium shells ## installs the programs that tests need in addition to Go, python3 and node
postgresql:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || \
	{ apt-get update && apt-get install -y --no-install-recommends postgresql; }
chromium:
	@command -v chromium >/dev/null || { apt-get update && apt-get install -y --no-install-recommends chromium; }
shells: # read the completions and the man page
	@command -v zsh >/dev/null && command -v fish >/dev/null && command -v mandoc >/dev/null || \
	{ apt-get update && apt-get install -y --no-install-recommends zsh fish mandoc; }
testdata/%/node_modules/.made: testdata/%/package.json
	npm install --prefix $(<D) --no-package-lock --no-audit --no-fund --silent
	touch $@

testdata/%/venv/.made: testdata/%/requirements.txt
	python3 -m venv $(@D)
	$(@D)/bin/python3 -m pip install --quiet --no-input --disable-pip-version-check -r $<
	touch $@

check: ## lint, race and a short run of each fuzz target, with the time of each
	@for step in lint race fuzz; do \
	  echo "== $$step"; began=$$(date +%s); $(MAKE) --no-print-directory $$step $(if $(filter command line,$(origin FUZZTIME)),,FUZZTIME=1000x CORPUS=) || exit 1; \
	  echo "== $$step took $$(($$(date +%s) - began)) s"; \
	done
