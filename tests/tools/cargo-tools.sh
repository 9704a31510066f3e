#!/bin/bash
# cargo-tools.sh - programs from crates.io that check dependencies and spelling, built below target/tools.
#
#   tests/tools/cargo-tools.sh [DIR] [TOOL...]   DIR defaults to target/tools, TOOL to all of them; then DIR/bin has their programs
#
# Built without optimisation: they run for seconds, and an optimised cargo-deny takes minutes to build. Done once it returns at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DIR=$(realpath -m "${1:-target/tools}")
[ $# -eq 0 ] || shift
VERSIONS="cargo-deny@0.20.2 cargo-machete@0.9.2 typos-cli@1.52.0"
[ $# -gt 0 ] || set -- cargo-deny cargo-machete typos-cli
mkdir -p "$DIR/stamps"
exec 9>"$DIR/lock"; flock 9
for name; do
  tool=
  for known in $VERSIONS; do [ "${known%@*}" != "$name" ] || tool=$known; done
  [ -n "$tool" ] || { echo "cargo-tools: there is no $name in: $VERSIONS" >&2; exit 2; }
  [ ! -e "$DIR/stamps/$tool" ] || continue
  # Of cargo-deny the defaults are TLS and Git clients for itself; git and cargo do the same. Of typos they are its dictionary.
  features=--no-default-features
  [ "$name" != typos-cli ] || features=
  echo "cargo-tools: building $tool" >&2
  CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$DIR/build" \
    "${CARGO:-cargo}" install --quiet --locked --debug $features --root "$DIR" "$tool"
  touch "$DIR/stamps/$tool"
done
rm -rf "$DIR/build"
