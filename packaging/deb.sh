#!/bin/bash
# deb.sh - builds the Debian package of Tortie from a compiled program.
#
#   packaging/deb.sh PROGRAM [DIR]      writes DIR/tortie_VERSION_ARCH.deb (default: target) and prints its path
#
# It needs only dpkg-deb: cargo-deb would compile 150 crates for the same result, in CI and for every packager.
# A static program (see docs/how-to/install.md) gives a package without dependencies. DEB_COMPRESS=none is for tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$(realpath "${1:?packaging/deb.sh PROGRAM [DIR]}")
out=${2:-target}
version=$("$program" version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
root=$work/root
# With SOURCE_DATE_EPOCH set, no file is younger, and the same program gives the same octets.
export LC_ALL=C TZ=UTC
umask 022
put() { install -D -m "$1" "$2" "$root/$3"; }

put 0755 "$program" usr/bin/tortie
put 0644 packaging/systemd/tortie.service lib/systemd/system/tortie.service
put 0640 packaging/etc/tortie.toml etc/tortie/tortie.toml
# Readable by all users, whose commands find the store by it; it names files with secrets and contains none.
put 0644 packaging/etc/tortie.env etc/tortie/tortie.env
put 0644 README.md usr/share/doc/tortie/README.md
put 0644 LICENSE usr/share/doc/tortie/copyright
mkdir -p "$root/usr/lib/cni"
(cd docs && find . -name '*.md' -o -name '*.svg') | while read -r page; do put 0644 "docs/$page" "usr/share/doc/tortie/docs/$page"; done
gzip -9nc CHANGELOG.md > "$root/usr/share/doc/tortie/changelog.gz"
# CNI directory of Debian's container runtimes; for runtimes that use /opt/cni/bin there is `tortie cni install`.
for name in tortie-cni tortie-ipam; do ln -s ../../bin/tortie "$root/usr/lib/cni/$name"; done
# The program itself generates its shell completion and manual pages.
complete() { "$program" completion "$1" > "$work/completion" 2>/dev/null && put 0644 "$work/completion" "$2"; }
complete bash usr/share/bash-completion/completions/tortie || true
complete zsh usr/share/zsh/vendor-completions/_tortie || true
complete fish usr/share/fish/vendor_completions.d/tortie.fish || true
mkdir -p "$work/man"
if "$program" man "$work/man" >/dev/null 2>&1; then
  for page in "$work"/man/*.[1-8]; do
    [ -e "$page" ] || continue
    gzip -9n "$page"
    put 0644 "$page.gz" "usr/share/man/man${page##*.}/$(basename "$page").gz"
  done
fi

mkdir -p "$root/DEBIAN"
install -m 0755 packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm "$root/DEBIAN/"
printf '/etc/tortie/tortie.env\n/etc/tortie/tortie.toml\n' > "$root/DEBIAN/conffiles"
# The newest glibc version that the program requires; a static program requires none.
libc=$(grep -aoE 'GLIBC_2\.[0-9]+' "$program" | sort -uV | tail -1 || true)
{
  echo "Package: tortie"
  echo "Version: $version"
  echo "Architecture: $arch"
  echo "Maintainer: The Tortie authors <tortie@localhost>"
  echo "Section: net"
  echo "Homepage: $(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)"
  echo "Priority: optional"
  # As dpkg-gencontrol counts: files by their size, all else as 1 KiB. What du says depends on the file system.
  echo "Installed-Size: $(find "$root" -mindepth 1 -path "$root/DEBIAN" -prune -o -printf '%y %s\n' \
    | awk '$1 == "f" { kib += int(($2 + 1023) / 1024); next } { kib++ } END { print kib }')"
  if [ -n "$libc" ]; then echo "Depends: libc6 (>= ${libc#GLIBC_})"; fi
  echo "Recommends: passwd"
  echo "Suggests: etcd-server"
  echo "Description: BGP, addresses, kernel routes and policy of a host"
  echo " One process per host in place of BIRD, confd and Felix, for networks on"
  echo " Calico's data in etcd, with CNI, Docker and Kurma plugins."
} > "$root/DEBIAN/control"
(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"

mkdir -p "$out"
deb=$(realpath "$out")/tortie_${version}_$arch.deb
dpkg-deb --root-owner-group -Z"${DEB_COMPRESS:-xz}" --build "$root" "$deb" >/dev/null
echo "$deb"
