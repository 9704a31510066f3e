#!/bin/bash
# release.sh - all files of a release, from the commit that is checked out.
#
#   packaging/release.sh [DIR]        writes DIR (default: target/release-VERSION):
#
#     tortie-VERSION-TARGET           the program, one static file
#     tortie_VERSION_ARCH.deb         the Debian package of it
#     tortie-VERSION-image-ARCH.tar   the container image: docker load -i, podman load -i
#     tortie-VERSION.cdx.json         the bill of materials (CycloneDX)
#     SHA256SUMS
#
# The same commit and toolchain give the same octets, whatever the folder and the user: paths of this machine are mapped away, the only
# time is that of the commit (SOURCE_DATE_EPOCH), and archives are sorted and owned by root. RELEASING.md has the steps around this one.
#
#   RELEASE_TARGET=T        instead of musl on this processor, e.g. x86_64-unknown-linux-gnu: then the files ask for its C library
#   RELEASE_DIRTY=1         from a tree with changes that are not committed, for a try
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
fail() { echo "release: $*" >&2; exit 1; }
say() { echo "release: $*" >&2; }

version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
target=${RELEASE_TARGET:-$(uname -m)-unknown-linux-musl}
dir=$(realpath -m "${1:-target/release-$version}")
[ ! -e "$dir" ] || [ -f "$dir/SHA256SUMS" ] || fail "$dir exists and is no release: name another folder"

# --- the commit
[ -n "${RELEASE_DIRTY:-}" ] || [ -z "$(git status --porcelain --untracked-files=no)" ] \
  || fail "there are changes that are not committed (RELEASE_DIRTY=1 for a try)"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
tag=$(git describe --exact-match --tags --match 'v*' 2>/dev/null || true)
if [ -n "$tag" ]; then
  [ "$tag" = "v$version" ] || fail "the tag is $tag, Cargo.toml has $version"
  grep -qE "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || fail "CHANGELOG.md has no '## [$version] - DATE'"
else
  say "no tag here: a try of $version"
fi

# --- what it needs
missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need cc gcc; need protoc protobuf-compiler; need readelf binutils; need dpkg-deb dpkg
case $target in *-musl) need musl-gcc musl-tools ;; esac
[ ${#missing[@]} -eq 0 ] || fail "missing: apt install ${missing[*]}"
sysroot=$(rustc --print sysroot)
[ -d "$sysroot/lib/rustlib/$target" ] || rustup target add "$target" || fail "the Rust target $target is missing"

# --- the program
# Settings of the user's environment would be in the program.
for name in $(compgen -e | grep -E '^(RUSTFLAGS|CARGO_ENCODED_RUSTFLAGS|RUSTC_WRAPPER|CARGO_PROFILE_.*|(TARGET_|HOST_)?C(XX)?FLAGS.*|LDFLAGS)$'); do
  unset "$name"
done
build=$(realpath -m "${CARGO_TARGET_DIR:-target}")
registry=$(realpath -m "${CARGO_HOME:-$HOME/.cargo}")
hash=$(rustc -vV | sed -n 's/^commit-hash: //p')
# Of several that fit a path, the last one counts.
flags=(--remap-path-prefix="$sysroot/lib/rustlib/src/rust=/rustc/$hash" --remap-path-prefix="$registry=/cargo"
  --remap-path-prefix="$root=/tortie" --remap-path-prefix="$build=/tortie/target")
export CARGO_ENCODED_RUSTFLAGS CARGO_INCREMENTAL=0
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f'; echo "${flags[*]}")
export "CFLAGS_${target//-/_}=-ffile-prefix-map=$registry=/cargo -ffile-prefix-map=$root=/tortie -ffile-prefix-map=$build=/tortie/target"
say "building $version for $target"
"${CARGO:-cargo}" build --release --locked --bin tortie --target "$target" --target-dir "$build"
program=$build/$target/release/tortie
case $target in *-musl) packaging/static.sh "$program" >&2 ;; esac
[ "$("$program" version)" = "tortie $version" ] || fail "$program is not $version"
# Of this machine nothing is left in it.
for path in "$registry" "$root" "$build" "$sysroot"; do
  ! grep -qF "$path" "$program" || fail "$program has the path $path in it"
done

# --- the files
part=$(dirname "$dir")/.$(basename "$dir").part
rm -rf "$part"; mkdir -p "$part"
install -m 0755 "$program" "$part/tortie-$version-$target"
packaging/deb.sh "$program" "$part" >&2
packaging/docker/archive.sh "$program" "$part/tortie-$version-image-$(dpkg --print-architecture).tar" >&2
packaging/sbom.sh "$part/tortie-$version.cdx.json" "$target" >&2
(cd "$part" && sha256sum -- * > SHA256SUMS)
rm -rf "$dir"
mv "$part" "$dir"
say "$dir"
cat "$dir/SHA256SUMS"
