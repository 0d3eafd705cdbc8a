# SPDX-License-Identifier: Apache-2.0 OR MIT
# The one runner. `make help` lists what it does.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

DEMETER_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/demeter
export DEMETER_CACHE

LAB := $(DEMETER_CACHE)/lab-venv/bin
PLOT := PYTHONPATH=lab $(LAB)/python -m demeter_lab.cli
EVALUATE := PYTHONPATH=lab $(LAB)/python -m demeter_lab.evaluation
DEMETER := target/release/demeter
KERNELS := 6.1 6.12 7.x

.PHONY: help demo test test-whole test-debug fuzz testbed build lint fmt bench bench-epoch bench-balloon bench-fleet bench-sizing soak bench-extmem experiments evaluate evaluate-quick figures man deb setup modules lab lab-lock clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: testbed lab ## the main job on a real guest: GUPS under every manager, table and figure
	$(DEMETER) vm demo --out out/demo
	$(PLOT) demo out/demo --out out/demo/throughput.svg

# Programs, tests and modules are built by the runner.
test: setup lab ## core, machine, kernels, guests, tools (all of all of it: test-whole)
	tests/run.sh

test-whole: setup lab ## the same without its savings: every kernel, every pairing, every rival, 200 000 exchanges, torture of half an hour, hibernation, upgrades below a served guest (hours)
	whole=0; TEST_WHOLE=1 TEST_KERNELS="6.12 6.1 7.x" TORTURE_SECONDS=300 TEST_SUITE_LIMIT_S=7200 tests/run.sh || whole=$$?; \
		PACKAGES_UPGRADE=1 TEST_SUITE_LIMIT_S=7200 TEST_LOGS=out/test-upgrade tests/run.sh packages && exit $$whole

test-debug: build lab ## on a kernel that watches itself (KASAN, lockdep, DEBUG_VM, UBSAN): built once, then hours
	testbed/debug-kernel.sh
	DEMETER_CACHE=$(DEMETER_CACHE)/debug TEST_SUITES=tests/debug/suites TEST_LOGS=out/test-debug TEST_JOBS=1 \
		TEST_SUITE_LIMIT_S=10800 tests/run.sh

fuzz: setup ## what strangers send, guided by coverage: a quarter of an hour a target
	fuzz/run.sh 900

# What guests need, and no more: the demo shall not wait for the host daemon.
testbed: setup ## the command, the QEMU plugin, the guest's programs, the modules for kernel 6.12
	cargo build --release -p demeter -p demeter-tcg-plugin -p demeter-agent -p demeter-workloads
	testbed/build-modules.sh 6.12

build: setup ## user-space programs, the QEMU plugin, the modules for kernel 6.12
	cargo build --release --workspace
	testbed/build-modules.sh 6.12

modules: setup ## the kernel modules for every supported kernel
	for kernel in $(KERNELS); do testbed/build-modules.sh $$kernel; done

setup: ## install and cache what the rest needs (idempotent, offline once cached)
	testbed/setup.sh

lab: setup ## the Python environment that draws figures
	lab/setup.sh "$(DEMETER_CACHE)"

lab-lock: lab ## renew lab/requirements.txt from lab/pyproject.toml
	lab/setup.sh "$(DEMETER_CACHE)" --lock

lint: setup lab ## checkpatch, W=1 and sparse, clippy, rustfmt, clang-format, ruff, shellcheck
	tests/lint.sh "$(LAB)"

fmt: lab ## format everything in place
	cargo fmt --all
	git ls-files 'core/*.[ch]' 'guest/*.[ch]' 'uapi/*.h' | xargs clang-format -i
	$(LAB)/ruff format lab
	$(LAB)/ruff check --fix lab

bench: build ## cost of the core: ns per sample, us per epoch, and an epoch of a large machine
	mkdir -p out/bench
	$(MAKE) -C core/tests bench OUT=$(CURDIR)/out/bench/core.json

bench-epoch: build ## the epoch over a tebibyte and over a hundred processes: CPU, and how long locks are held, in guests
	tests/suites/epoch

bench-balloon: build lab ## the balloon against virtio-balloon and virtio-mem: rates, and GUPS in guests composed by them
	PYTHONPATH=lab $(LAB)/python -m demeter_lab.balloon.bench --out out/balloon

bench-fleet: build lab ## the host daemon with a hundred modelled guests, and with four real ones (FLEET_GUESTS)
	mkdir -p out/fleet
	cargo test --release -p demeterd --test hundred -- --ignored --nocapture | tee out/fleet/table.txt
	PYTHONPATH=lab $(LAB)/python -m demeter_lab.balloon.many --guests $(or $(FLEET_GUESTS),4) --out out/fleet

bench-sizing: build lab ## a real guest that the policy working-set sizes, beside the same one left alone
	PYTHONPATH=lab $(LAB)/python -m demeter_lab.balloon.sizing --busy-permille 100 --out out/sizing

soak: build lab ## ten thousand random operations on real guests under one daemon (SOAK_OPERATIONS, SOAK_GUESTS, SOAK_SEED; hours)
	SOAK_OPERATIONS=$(or $(SOAK_OPERATIONS),10000) SOAK_GUESTS=$(or $(SOAK_GUESTS),6) \
		SOAK_SEED=$(or $(SOAK_SEED),$$(date +%s)) SOAK_LOG=out/soak tests/suites/soak

bench-extmem: build lab ## the user-space pager against Linux swap at its best (root; half an hour a run: EXTMEM_RUNS; then programs, an hour)
	lab/experiments/extmem.sh --runs $(or $(EXTMEM_RUNS),1) --out out/extmem
	lab/experiments/extmem-locality.sh

experiments: build lab ## the other tables: seven workloads, touch, redis, liblinear, uniform access, losses, vCPUs, parameters
	for experiment in seven seven-cxl draws touch redis liblinear uniform loss loss-touch spread vcpus sensitivity sensitivity-cxl; do lab/experiments/run.sh $$experiment || exit 1; done

evaluate: build lab ## every table and figure of the paper, made again (a day; what is done is kept): out/evaluation/index.html
	$(EVALUATE) run

evaluate-quick: build lab ## the same with smaller guests, one seed, fewer points (an hour and a quarter on two processors)
	$(EVALUATE) run --quick

figures: lab ## redraw figures from recorded results, of the demo and of the evaluation
	[ ! -e out/evaluation/plan.json ] || $(EVALUATE) report
	[ ! -e out/demo ] && [ -e out/evaluation/plan.json ] || $(PLOT) demo out/demo --out out/demo/throughput.svg

deb: build ## Debian packages of the modules (DKMS), the daemon and the command, into out/deb
	packaging/deb.sh out/deb

man: build ## manual pages and shell completions, into out/man
	$(DEMETER) man --out out/man
	for shell in bash zsh fish; do $(DEMETER) completions $$shell >out/man/demeter.$$shell; done

clean: ## remove what was built here (the cache stays)
	rm -rf target build out
	$(MAKE) -C core/tests clean
