#!/bin/bash
# reproduce.sh - whether two runs of release.sh give the same octets: from two clones, in folders of different length, as different times
# of day. Takes two release builds.
#
#   packaging/reproduce.sh [DIR]      DIR (default: target/reproduce) is made, and removed if both are equal
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dir=$(realpath -m "${1:-target/reproduce}")
[ ! -e "$dir" ] || { echo "reproduce: $dir is there already: remove it" >&2; exit 1; }
# One commit for both: the branch may move while the first one is built.
commit=$(git rev-parse HEAD)
for name in a another-folder-with-a-longer-name; do
  git clone -q --no-local --no-checkout . "$dir/$name/tortie"
  git -C "$dir/$name/tortie" checkout -q --detach "$commit"
  # A target directory of its own, whatever the environment says.
  (cd "$dir/$name/tortie" && env -u CARGO_TARGET_DIR packaging/release.sh "$dir/$name/files")
done
if ! diff "$dir"/a/files/SHA256SUMS "$dir"/another-folder-with-a-longer-name/files/SHA256SUMS; then
  echo "reproduce: two runs differ; both are kept in $dir" >&2
  exit 1
fi
echo "two runs gave the same octets:"
cat "$dir/a/files/SHA256SUMS"
rm -rf "$dir"
