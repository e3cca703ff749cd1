# Every target sets itself up in .venv; it needs only a supported Python, pip and make.

PYTHON  ?= python3
DATA    ?= .holdfast
WORKERS ?= 3
ARGS    ?=
BASE    ?=
PYTHONS ?=

# A test compares these with the classifiers in pyproject.toml. The lock files have wheels for all of them.
SUPPORTED := 3.11 3.12 3.13 3.14
SUPPORTED_RANGE := $(firstword $(SUPPORTED)) to $(lastword $(SUPPORTED))
# A free-threaded build has a "t" after its version. Python 2 runs this too.
VERSION := import sys; print("%d.%d" % sys.version_info[:2] + getattr(sys, "abiflags", "").replace("m", ""))

PYTEST := .venv/bin/python -m pytest

# What `make examples` shows. Those with a lock get an environment of their own: none of them is a dependency of ours.
FRAMEWORKS := langgraph openai_agents pydantic_ai crewai
SCHEDULERS := celery apscheduler
STORIES    := plain $(FRAMEWORKS) $(SCHEDULERS)
ifneq ($(filter examples,$(MAKECMDGOALS)),)
ifeq ($(shell "$(PYTHON)" -c '$(VERSION)' 2>/dev/null),3.14)
$(info CrewAI has no release for Python 3.14, so its example is left out.)
STORIES    := $(filter-out crewai,$(STORIES))
endif
endif
EXAMPLES   := $(if $(ARGS),$(filter $(STORIES),$(ARGS)),$(STORIES))
EXAMPLE_STAMPS := $(patsubst %,.venv-examples/%/stamp,$(filter-out plain,$(EXAMPLES)))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help run cluster demo test pythons coverage examples hosts prove through prove-release check format browser pictures recording bench bench-check install install-run wheel lock clean

help: ## Print this list
	@echo 'Usage: make TARGET [ARGS="…"]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s  %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  PYTHON=python3  the Python ($(SUPPORTED_RANGE)) that .venv is made from'
	@echo '  PYTHONS=        paths of further interpreters for `make pythons`'
	@echo '  DATA=.holdfast  where `make run` keeps its data'
	@echo '  BASE=           the commit that `make bench-check` compares with, by default the last tag'
	@echo '  WORKERS=3       how many processes share the tests; many tests wait, so one more than cores'

run: .venv/run.stamp ## Start the server on its embedded store (DATA=DIR, ARGS="--listen …")
	@exec .venv/bin/holdfast serve --data "$(DATA)" $(ARGS)

# `make run` keeps its data in DATA anyway; a cluster does only if somebody says so.
cluster: .venv/dev.stamp ## Start three nodes on a PostgreSQL of their own, until Ctrl-C (DATA=DIR keeps it)
	@exec .venv/bin/python examples/cluster.py $(if $(filter file,$(origin DATA)),,--data "$(DATA)") $(ARGS)

demo: .venv/run.stamp ## Watch five agents share a backlog on a server of their own; half a minute, with a proof
	@exec .venv/bin/python -m examples.demo $(ARGS)

test: .venv/dev.stamp ## Run every test (ARGS="tests/core -k renew")
	@exec $(PYTEST) -n "$(WORKERS)" --dist worksteal $(ARGS)

pythons: .venv/made ## Run `make test` on every supported Python found here, in clean clones (PYTHONS="PATH …")
	@exec env PYTHONS="$(PYTHONS)" ARGS="$(ARGS)" .venv/bin/python -m tests.support.pythons

# Every process that a test starts is measured too. The tests decide the exit code.
coverage: .venv/dev.stamp ## Run the tests and show which lines they reach (ARGS="tests/core")
	@.venv/bin/coverage erase
	@code=0; .venv/bin/coverage run -m pytest -n "$(WORKERS)" --dist worksteal $(ARGS) || code=$$?; \
	.venv/bin/coverage combine --quiet && .venv/bin/coverage report && .venv/bin/coverage html --quiet && \
	echo 'Line by line: .coverage-html/index.html'; exit $$code

# All of them even if one fails, so that one run tells everything.
examples: .venv/dev.stamp $(EXAMPLE_STAMPS) ## Run the examples of frameworks and schedulers, in environments of their own (ARGS="crewai celery")
	@test -z "$(filter-out $(EXAMPLES),$(ARGS))" || { echo 'There are: $(STORIES)' >&2; exit 1; }
	@failed=; for name in $(EXAMPLES); do \
	    echo "--- $$name"; kind=$$(basename $$(dirname examples/*/$$name)); \
	    .venv/bin/python -m examples.$$kind.story $$name || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "These failed:$$failed" >&2; exit 1; }

# It downloads about 1.5 GB, so no other target runs it.
hosts: .venv/dev.stamp ## Run real agent hosts with a scripted model; installs them into .hosts (ARGS="-k codex")
	@exec env WORKERS="$(WORKERS)" .venv/bin/python -m tests.hosts $(ARGS)

prove: .venv/dev.stamp ## Run every test with larger counts, as for every change; takes under an hour
	@env HOLDFAST_PROOF=ci $(PYTEST) -n "$(WORKERS)" --dist worksteal -o faulthandler_timeout=3600 $(ARGS)
	@test -n "$(ARGS)" || env HOLDFAST_TEST_POSTGRES_VERSION=18 $(PYTEST) -n "$(WORKERS)" --dist worksteal tests/journal/postgres tests/cluster
	@test -n "$(ARGS)" || $(MAKE) --no-print-directory through
	@test -n "$(ARGS)" || $(MAKE) --no-print-directory examples

through: .venv/dev.stamp ## Run the tests of the server through a node that follows, on a PostgreSQL of their own (ARGS=…)
	@exec env HOLDFAST_THROUGH=follower $(PYTEST) -n "$(WORKERS)" --dist loadfile $(or $(ARGS),tests/api)

prove-release: .venv/dev.stamp ## Run every test with the counts of a release; takes hours
	@exec env HOLDFAST_PROOF=release $(PYTEST) -n "$(WORKERS)" --dist worksteal -o faulthandler_timeout=7200 $(ARGS)

# Without Node the scripts of the operators' page are not type-checked: nothing else here needs it.
ifneq ($(and $(shell command -v node),$(shell command -v npm)),)
CHECK_SCRIPTS := .typescript/node_modules/.bin/tsc -p tests/browser/typescript
check: .typescript/stamp
else
CHECK_SCRIPTS := echo "Left out: the types of the page's scripts, because there is no Node here."
endif

check: .venv/dev.stamp ## Lint, formatting, types (of the page's scripts too, where Node is present) and house rules
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@$(CHECK_SCRIPTS)
	@$(PYTEST) -q tests/test_house_rules.py

format: .venv/dev.stamp ## Format the code and fix what ruff can fix
	@.venv/bin/ruff check --fix-only --quiet .
	@.venv/bin/ruff format .

# Debian's own, because Playwright's are downloads that many networks refuse. This is the one target that installs something
# outside of .venv, and it needs root for that. Any other Chromium will do: see tests/support/chromium.py.
browser: .venv/dev.stamp ## Install Chromium (Debian's, as root), for the tests of the operators' page
	@.venv/bin/python -m tests.support.chromium 2>/dev/null || { \
	    root=$$(test "$$(id -u)" = 0 || echo sudo); \
	    command -v apt-get >/dev/null && $$root apt-get update -q && \
	    $$root apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core; \
	    .venv/bin/python -m tests.support.chromium; \
	}

pictures: .venv/dev.stamp ## Draw the pictures of the docs anew; those of the page need `make browser`
	@.venv/bin/python docs/pictures/draw.py
	@.venv/bin/python docs/pictures/recording.py
	@.venv/bin/python -m tests.browser.screenshots

recording: .venv/run.stamp ## Record `make demo` anew for the README; half a minute
	@exec .venv/bin/python docs/pictures/recording.py --record

bench: .venv/bench.stamp ## Measure our server and the peers found here; over an hour (ARGS="peers --quick")
	@exec .venv/bin/python -m benchmarks $(ARGS)

bench-check: .venv/bench.stamp ## Fail if a request costs 5 % more processor time than at BASE; a few minutes
	@exec .venv/bin/python -m benchmarks check --base "$(BASE)" $(ARGS)

install: .venv/dev.stamp ## Fill .venv with all that running, testing and checking need
	@echo 'Ready: .venv/bin/holdfast --help'

install-run: .venv/run.stamp ## Fill .venv with what a server needs, and no more
	@echo 'Ready: .venv/bin/holdfast --help'

# One commit gives one wheel, byte for byte: every file in it has the time of the commit. An unpacked source distribution
# has that time on its files.
wheel: .venv/run.stamp ## Build the wheel and the source distribution into dist/
	@mkdir -p dist
	@when=$$(test -e .git && git log -1 --format=%ct || .venv/bin/python -c '$(MADE)'); \
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$when} .venv/bin/python -c "$$BUILD_BOTH"

MADE := import os; print(int(os.stat("pyproject.toml").st_mtime))
define BUILD_BOTH
from flit_core import buildapi
wheel, sdist = buildapi.build_wheel("dist"), buildapi.build_sdist("dist")
print(f"Built dist/{wheel} and dist/{sdist}. Install it into an environment of your own:")
print(f"  pip install 'dist/{wheel}[server]'  # the server, the client and the commands")
print(f"  pip install dist/{wheel}  # the client and the commands alone")
endef
export BUILD_BOTH

clean: ## Remove all that make and the tools made, except the data
	rm -rf .venv .venv-lock .venv-examples .hosts .typescript .pythons .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# --- Set-up -----------------------------------------------------------------------------------------------------------
# A stamp is written only when everything before it went well, so an interrupted installation starts again.

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_USER := 0

# An environment belongs to one folder and one Python. After a move, a copy or an upgrade it would quietly run other
# code, so it is made anew.
WHOSE := import os, sys; print(os.getcwd(), *sys.version_info[:2])
ifneq ($(shell cat .venv/made 2>/dev/null),$(shell .venv/bin/python -c '$(WHOSE)' 2>/dev/null))
.PHONY: .venv/made
endif
ifneq ($(shell cat .venv-lock/made 2>/dev/null),$(shell .venv-lock/bin/python -c '$(WHOSE)' 2>/dev/null))
.PHONY: .venv-lock/made
endif
ifneq ($(filter examples,$(MAKECMDGOALS)),)
is_stale = $(shell test "$$(cat $1 2>/dev/null)" = "$$($(dir $1)bin/python -c '$(WHOSE)' 2>/dev/null)" || echo yes)
$(foreach made,$(EXAMPLE_STAMPS:stamp=made),$(if $(call is_stale,$(made)),$(eval .PHONY: $(made))))
endif

# Without pip, because Debian's Python comes without the ensurepip that would put it there.
.venv/made .venv-lock/made $(EXAMPLE_STAMPS:stamp=made):
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo 'Holdfast needs Python $(SUPPORTED_RANGE), and "$(PYTHON)" was not found. Choose another: make PYTHON=/path/to/python3' >&2; exit 1; }
	@version=$$("$(PYTHON)" -c '$(VERSION)'); case " $(SUPPORTED) " in *" $$version "*) ;; *) \
	    echo "Holdfast needs Python $(SUPPORTED_RANGE), and $(PYTHON) is $${version:-not a Python}. Choose another: make PYTHON=/path/to/python3" >&2; exit 1; esac
	@"$(PYTHON)" -m venv --clear --without-pip $(@D)
	@$(@D)/bin/python -c '$(WHOSE)' > $@

# Defines the shell function `into_venv`. A pip from 22.3 on can fill another environment, whether it comes as a module or
# only as a command; where there is none, the environment may be able to make its own. pip runs in that environment's
# Python, and a pip older than 23.1.2 fails on Python 3.12 and newer once it looks for packages, so `list` is what is tried.
define find_pip
venv=$(@D); \
works() { "$$@" --python $$venv/bin/python list >/dev/null 2>&1; }; \
if   works "$(PYTHON)" -m pip; then into_venv() { "$(PYTHON)" -m pip --python $$venv/bin/python "$$@"; }; \
elif works pip3;               then into_venv() { pip3 --python $$venv/bin/python "$$@"; }; \
elif works pip;                then into_venv() { pip --python $$venv/bin/python "$$@"; }; \
elif $$venv/bin/python -m ensurepip >/dev/null 2>&1; then into_venv() { $$venv/bin/python -m pip "$$@"; }; \
else \
    echo 'Holdfast needs pip 22.3 or newer (23.1.2 or newer for Python 3.12 and newer), and none was found for "$(PYTHON)". On Debian: apt install python3-pip' >&2; \
    exit 1; \
fi
endef

.venv/%.stamp: requirements/%.txt pyproject.toml .venv/made
	@echo 'Installing $< into .venv …'
	@$(find_pip); \
	into_venv install --quiet --require-hashes -r $< && \
	into_venv install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.typescript/stamp: tests/browser/typescript/package.json
	@echo 'Installing TypeScript into .typescript …'
	@mkdir -p .typescript && cp $< .typescript/
	@cd .typescript && npm install --no-save --no-package-lock --no-audit --no-fund --silent
	@touch $@

.venv-examples/%/stamp: pyproject.toml .venv-examples/%/made
	@echo 'Installing $(wildcard examples/*/$*/requirements.txt) into $(@D) …'
	@$(find_pip); \
	into_venv install --quiet --require-hashes -r examples/*/$*/requirements.txt && \
	into_venv install --quiet --no-deps --no-build-isolation -e . || { \
	    echo 'The example $* cannot be installed; what pip says is above.' >&2; exit 1; }
	@touch $@
$(foreach stamp,$(EXAMPLE_STAMPS),$(eval $(stamp): $(wildcard examples/*/$(notdir $(stamp:/stamp=))/requirements.txt)))

# --- Locks ------------------------------------------------------------------------------------------------------------

.venv-lock/lock.stamp: requirements/lock.txt .venv-lock/made
	@echo 'Installing $< into .venv-lock …'
	@$(find_pip); into_venv install --quiet --require-hashes -r $<
	@touch $@

# No option of whoever runs this may reach a lock: hashes say what is installed, never where it comes from.
COMPILE := CUSTOM_COMPILE_COMMAND='make lock' .venv-lock/bin/python -m piptools compile --quiet --no-config \
    --generate-hashes --allow-unsafe --strip-extras --newline=lf --resolver=backtracking \
    --no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

# Made with the oldest supported Python: newer ones need fewer backports, and the rest is the same for all.
lock: .venv-lock/lock.stamp ## Pin the dependencies again (ARGS=--upgrade for newer ones)
	@test "$$(.venv-lock/bin/python -c '$(VERSION)')" = $(firstword $(SUPPORTED)) || { \
	    echo 'Locks are made with Python $(firstword $(SUPPORTED)): make lock PYTHON=/path/to/python$(firstword $(SUPPORTED))' >&2; exit 1; }
	@$(COMPILE) $(ARGS) -o requirements/lock.txt requirements/lock.in
	@$(COMPILE) $(ARGS) -o requirements/run.txt --extra server pyproject.toml requirements/run.in
	@$(COMPILE) $(ARGS) -o requirements/image.txt --extra server --extra mcp --extra postgres --extra otel pyproject.toml requirements/image.in
	@$(COMPILE) $(ARGS) -o requirements/dev.txt --extra server pyproject.toml requirements/dev.in
	@$(COMPILE) $(ARGS) -o requirements/bench.txt --extra server pyproject.toml requirements/bench.in
	@for lock in examples/*/*/requirements.in; do echo "$$lock …"; \
	    $(COMPILE) $(ARGS) -o "$${lock%.in}.txt" --extra async pyproject.toml requirements/run.in "$$lock" || exit 1; done
