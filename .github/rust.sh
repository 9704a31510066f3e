#!/bin/sh
# rust.sh - the Rust toolchain of a job: rust.sh VERSION. CARGO_HOME and RUSTUP_HOME say where it goes.
set -eu
curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs \
  | sh -s -- -y --no-modify-path --profile minimal --component clippy --component rustfmt --default-toolchain "$1"
echo "$CARGO_HOME/bin" >> "$GITHUB_PATH"
"$CARGO_HOME/bin/rustc" -vV
