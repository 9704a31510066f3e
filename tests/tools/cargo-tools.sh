#!/bin/bash
# cargo-tools.sh - the cargo commands that check dependencies, built below target/tools.
#
#   tests/tools/cargo-tools.sh [DIR]      DIR defaults to target/tools; then DIR/bin has cargo-deny and cargo-machete
#
# Built without optimisation: they run for seconds, and an optimised cargo-deny takes minutes to build. Done once it returns at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DIR=$(realpath -m "${1:-target/tools}")
TOOLS="cargo-deny@0.20.2 cargo-machete@0.9.2"
[ "$(cat "$DIR/stamp" 2>/dev/null)" != "$TOOLS" ] || exit 0
mkdir -p "$DIR"
exec 9>"$DIR/lock"; flock 9
[ "$(cat "$DIR/stamp" 2>/dev/null)" != "$TOOLS" ] || exit 0
for tool in $TOOLS; do
  # cargo-deny's defaults are TLS and Git clients for itself; it is content with git and cargo.
  CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$DIR/build" \
    "${CARGO:-cargo}" install --quiet --locked --debug --no-default-features --root "$DIR" "$tool"
done
rm -rf "$DIR/build"
echo "$TOOLS" > "$DIR/stamp"
