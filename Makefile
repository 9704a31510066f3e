# make demo and make test are all a newcomer needs; both bring what they miss (see tests/tools/peers.sh).
CARGO ?= cargo
PEERS := target/peers
export CARGO_TERM_COLOR ?= auto
# The tests and the demo look for peers here first, then in PATH.
export TORTIE_PEERS := $(CURDIR)/$(PEERS)/bin

.PHONY: demo build test test-long soak bench peers fmt fmt-check lint docs
.DEFAULT_GOAL := build

build: peers
	$(CARGO) build --workspace

demo: peers
	$(CARGO) build --bin tortie
	target/debug/tortie demo $(ARGS)

# Formatting first: it fails in a second. Clippy and the tests share one profile, so dependencies compile once.
test: peers fmt-check lint
	$(CARGO) test --workspace --no-fail-fast

# Everything that takes minutes: marked #[ignore] with the word "long" or "soak" in its reason, named long_* or soak_*.
test-long: peers
	$(CARGO) test --workspace --no-fail-fast -- --include-ignored --skip soak_

soak: peers
	$(CARGO) test --workspace --no-fail-fast -- --ignored soak_ --test-threads 1

bench: peers
	$(CARGO) build --release --bin tortie
	$(CARGO) bench --workspace

peers:
	@tests/tools/peers.sh $(PEERS)

fmt:
	$(CARGO) fmt --all

fmt-check:
	$(CARGO) fmt --all --check

lint: peers
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
