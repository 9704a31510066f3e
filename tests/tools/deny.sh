#!/bin/bash
# deny.sh CARGO_DENY - licences, bans and sources of all dependencies by deny.toml, always; advisories where the RustSec database can
# be fetched. Where it cannot, the last line says so; with DENY_ADVISORIES set that is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
"$1" --locked check licenses bans sources
if timeout 120 "$1" fetch db >/dev/null 2>&1; then
  "$1" --locked check advisories
elif [ -n "${DENY_ADVISORIES:-}" ]; then
  echo "deny: the RustSec database cannot be fetched, and DENY_ADVISORIES asks for it" >&2
  exit 1
else
  echo "deny: ADVISORIES NOT CHECKED: the RustSec database (github.com/RustSec/advisory-db) cannot be fetched from here" >&2
fi
