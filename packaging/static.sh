#!/bin/bash
# static.sh - whether a program is static, and starts where there is nothing else.
#
#   packaging/static.sh PROGRAM
set -euo pipefail
program=$(realpath "${1:?packaging/static.sh PROGRAM}")
headers=$(readelf --program-headers --wide "$program")
if grep -q INTERP <<< "$headers"; then
  echo "static.sh: $program asks for a loader: it is not static" >&2
  exit 1
fi
if readelf --dynamic --wide "$program" | grep -q NEEDED; then
  echo "static.sh: $program asks for libraries: it is not static" >&2
  exit 1
fi
# An empty root: no loader, no library, no file of this machine but the name of the boot, which leases of a store need. The store
# shows that SQLite works there.
root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
mkdir -p "$root/proc/sys/kernel/random"
cat /proc/sys/kernel/random/boot_id > "$root/proc/sys/kernel/random/boot_id"
install -m 0755 "$program" "$root/tortie"
inside=(chroot "$root" /tortie)
[ "$(id -u)" = 0 ] || inside=(unshare --map-root-user "${inside[@]}")
said=$("${inside[@]}" version)
"${inside[@]}" --datastore sqlite:/store.db store put /calico/v1/Ready true > /dev/null
[ "$("${inside[@]}" --datastore sqlite:/store.db store get /calico/v1/Ready)" = true ]
echo "$said, static, $(stat -c %s "$program") octets: $program"
