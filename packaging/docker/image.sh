#!/bin/bash
# image.sh - the container image of Tortie, from a program that is built already; it asks no registry.
#
#   packaging/docker/image.sh PROGRAM [TAG]          builds TAG (default: tortie) with the docker of this machine
#   packaging/docker/image.sh PROGRAM --context DIR  writes what `docker build DIR` takes, and builds nothing
#
# A static program (make static) is the whole image. With another one go the libraries that it asks for, those of this machine.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
program=$(realpath "${1:?packaging/docker/image.sh PROGRAM [TAG | --context DIR]}")
if [ "${2:-}" = --context ]; then
  dir=${3:?--context DIR}
  mkdir -p "$dir"
else
  dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
fi
root=$dir/root
install -D -m 0755 "$program" "$root/usr/bin/tortie"
for name in tortie-cni tortie-ipam; do ln -sf tortie "$root/usr/bin/$name"; done
install -d "$root/etc/tortie" "$root/var/lib/tortie" "$root/run/tortie"
install -d -m 1777 "$root/tmp"
# Names for the owner and the group of the socket.
echo 'root:x:0:0:root:/:/usr/bin/tortie' > "$root/etc/passwd"
printf 'root:x:0:\ntortie:x:999:\n' > "$root/etc/group"
# Paths of the loader and of libraries, whatever else ldd says; it fails for a static program.
{ ldd "$program" 2>/dev/null || true; } | grep -oE '/[^ ]+' | while read -r library; do
  install -D -m 0755 "$library" "$root$library"
done
cp "$here/Dockerfile" "$dir/"
if [ "${2:-}" != --context ]; then
  docker build -t "${2:-tortie}" "$dir"
fi
