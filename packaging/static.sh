#!/bin/bash
# static.sh - checks that a program is static, and that it runs in an empty root.
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
# The empty root has no loader, no library and no file of this machine except the boot id, which leases of a store need. The
# store commands show that SQLite works there.
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
