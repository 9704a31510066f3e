# make demo and make test are all a newcomer needs; both fetch what they miss, the demo about 6 MB besides a compiler and
# protoc, the tests about 550 MB (tests/tools/peers.sh).
CARGO ?= cargo
PEERS := target/peers
export CARGO_TERM_COLOR ?= auto
# The tests and the demo look for peers here first, then in PATH.
export TORTIE_PEERS := $(CURDIR)/$(PEERS)/bin

# Rust's name of the C library musl on this processor.
STATIC := $(shell uname -m)-unknown-linux-musl

# Debian's package of a release build; the last line is its path.
deb: build-tools
	$(CARGO) build --release --locked --bin tortie
	packaging/deb.sh target/release/tortie

.PHONY: demo build build-tools static-tools deb static test test-long soak no-test-hooks fuzz-smoke bench peers fmt fmt-check lint docs
.PHONY: tools spelling unused deny no-etcd check-release release-tests publish-check
.DEFAULT_GOAL := build

build: build-tools
	$(CARGO) build --workspace

# One file that runs on any Linux of this processor, whatever C library it has: musl, SQLite and TLS are inside. Needs rustup, which
# brings the target; then it is tried in an empty root.
static: static-tools
	rustup target add $(STATIC)
	$(CARGO) build --release --locked --bin tortie --target $(STATIC)
	packaging/static.sh target/$(STATIC)/release/tortie

demo:
	@tests/tools/peers.sh $(PEERS) demo
	$(CARGO) build --bin tortie
	target/debug/tortie demo $(ARGS)

# Formatting first: it fails in a second. Clippy and the tests share one profile, so dependencies compile once.
test: peers fmt-check spelling lint docs fuzz-smoke
	$(CARGO) test --workspace --no-fail-fast

# Five seconds a fuzz target, two at a time: the stable Rust of all else and a C++ compiler for libFuzzer (g++).
fuzz-smoke: peers
	FUZZ_JOBS=2 bgp/fuzz/run 5

# What takes minutes: tests named long_* and 30 seconds a fuzz target. Runs each night: CI_STAGE=long .ci/run.
test-long: peers
	bgp/fuzz/run 30
	$(CARGO) test --workspace --no-fail-fast -- --ignored long_ --test-threads 1

# What takes hours: tests named soak_* and an hour a fuzz target. Runs each week: CI_STAGE=soak .ci/run.
soak: peers
	bgp/fuzz/run 3600
	$(CARGO) test --workspace --no-fail-fast -- --ignored soak_ --test-threads 1

# What `cargo build` makes has no hook that a test could pull: their environment variable is not in the program.
no-test-hooks: peers
	$(CARGO) build --bin tortie
	! grep -q TORTIE_MIGRATE_HALT target/debug/tortie

# The parts, containers' addresses and interfaces, then whole daemons side by side (root; about 15 minutes): see benches/README.md.
bench: peers
	$(CARGO) bench --workspace
	$(CARGO) build --release --example bgp_load --example ipam_rate --example cni_latency
# The program last and alone: what is built for benches and examples has the test hooks (Cargo.toml, dev-dependencies).
	$(CARGO) build --release --bin tortie
	benches/addresses.sh
	benches/side-by-side.sh $(ARGS)

peers:
	@tests/tools/peers.sh $(PEERS)

# A C compiler, protoc and ip, where they are missing.
build-tools:
	@tests/tools/peers.sh $(PEERS) build

# The same, and a C compiler for musl.
static-tools:
	@tests/tools/peers.sh $(PEERS) static

fmt:
	$(CARGO) fmt --all

fmt-check:
	$(CARGO) fmt --all --check

lint: build-tools
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

# What continuous integration checks besides: none of it is needed to build or to test.
TOOLS := target/tools

tools:
	@tests/tools/cargo-tools.sh $(TOOLS) cargo-deny cargo-machete

# The term test has two halves. This one checks the spelling of documents, comments and texts of the program; its failures have file, line,
# word and suggestion, and tests/tools/typos.toml has the words that are right. The other half is `cargo test --test architecture words`.
spelling:
	@tests/tools/cargo-tools.sh $(TOOLS) typos-cli
	$(TOOLS)/bin/typos --config tests/tools/typos.toml --format brief

# Dependencies that no source names.
unused: tools
	$(TOOLS)/bin/cargo-machete --skip-target-dir

# Licences, sources, doubled crates and advisories of what is depended on: deny.toml.
deny: tools
	@tests/tools/deny.sh $(TOOLS)/bin/cargo-deny

# Without the etcd client, which is what needs protoc.
no-etcd:
	$(CARGO) check --no-default-features --lib --bins

# That the tests compile in a release build: as there, our crates have no debug assertions. An optimised build of all of them takes a
# quarter of an hour and is made each night (release-tests); this check shares the dependencies of `make test`.
check-release: peers
	$(CARGO) check --workspace --tests --config 'profile.dev.debug-assertions=false' \
	  --config 'profile.dev.package."*".debug-assertions=true'

# Without optimisation at link time: it would join the whole program once more for each of some forty test programs.
release-tests: peers
	$(CARGO) test --release --workspace --no-run --config 'profile.release.lto="off"' --config profile.release.codegen-units=16

# All files of a release (RELEASING.md), below target/release-VERSION; the same commit gives the same octets.
.PHONY: release reproduce sbom
release: static-tools
	packaging/release.sh

# Two clones in different folders, two release builds: their files have to be equal.
reproduce: static-tools
	packaging/reproduce.sh

# The bill of materials alone.
sbom:
	packaging/sbom.sh target/tortie.cdx.json

# The libraries that others can use are packed, and built from the packages alone. cargo keeps the sources of a dependency that it packed
# by name and version: those of an earlier run here go first.
publish-check:
	rm -rf "$${CARGO_HOME:-$$HOME/.cargo}"/registry/src/-*/tortie-*
	$(CARGO) publish --dry-run --allow-dirty -p tortie-net -p tortie-bgp
