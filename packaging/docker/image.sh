#!/bin/bash
# image.sh - builds the container image of Tortie from a compiled program, without a registry.
#
#   packaging/docker/image.sh PROGRAM [TAG]          builds TAG (default: tortie) with the docker of this machine
#   packaging/docker/image.sh PROGRAM --context DIR  writes the input of `docker build DIR` and builds nothing
#
# The image contains a static program (make static) alone. For another program it also has the libraries that it needs, from
# this machine.
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
umask 022
install -D -m 0755 "$program" "$root/usr/bin/tortie"
for name in tortie-cni tortie-ipam; do ln -sf tortie "$root/usr/bin/$name"; done
install -d "$root/etc/tortie" "$root/var/lib/tortie" "$root/run/tortie"
install -d -m 1777 "$root/tmp"
# User and group of the socket need names.
echo 'root:x:0:0:root:/:/usr/bin/tortie' > "$root/etc/passwd"
printf 'root:x:0:\ntortie:x:999:\n' > "$root/etc/group"
# Only the paths of the loader and of libraries in ldd's output; ldd fails for a static program.
{ ldd "$program" 2>/dev/null || true; } | { grep -oE '/[^ ]+' || true; } | while read -r library; do
  install -D -m 0755 "$library" "$root$library"
done
cp "$here/Dockerfile" "$dir/"
if [ "${2:-}" != --context ]; then
  docker build -t "${2:-tortie}" "$dir"
fi
