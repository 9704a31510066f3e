#!/bin/sh
# build.sh BINARY DIRECTORY: creates the image of Kurma's network plugin in DIRECTORY, and packs it as DIRECTORY.aci.
# It needs no network: the image consists of the program, its libraries, and the links that Kurma calls.
set -eu
[ $# -eq 2 ] || { echo "usage: build.sh BINARY DIRECTORY" >&2; exit 2; }
binary=$1 image=$2 here=$(cd "$(dirname "$0")" && pwd)
[ ! -e "$image" ] || { echo "$image exists: name a folder that does not" >&2; exit 2; }
root=$image/rootfs
mkdir -p "$root/usr/bin" "$root/opt/network" "$root/etc" "$root/dev" "$root/tmp" \
  "$root/proc" "$root/sys" "$root/run/tortie" "$root/var/lib/tortie" "$root/var/lib/kurma/netns"
install -m 755 "$binary" "$root/usr/bin/tortie"
# The program takes its verb from the name that it is called by.
for verb in setup setup-wait add del; do
  ln -s ../../usr/bin/tortie "$root/opt/network/$verb"
done
# The libraries and the loader, with their paths; nothing for a static program.
ldd "$binary" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
  install -D -m 755 "$library" "$root$library"
done
cp "$here/manifest.json" "$image/manifest"
tar -C "$image" -cf "$image.aci" --sort=name --owner=0 --group=0 manifest rootfs
