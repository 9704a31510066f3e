#!/bin/bash
# benches/addresses.sh [CONTAINERS]
# Measures the time that containers wait for addresses and interfaces, for Tortie and the reference plugins in the same run:
# addresses from SQLite, from etcd and from host-local (examples/ipam_rate), then whole containers with Tortie's plugin and
# with bridge and host-local (examples/cni_latency). The last lines are ratios. Needs root; see benches/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
peers=${TORTIE_PEERS:-$PWD/target/peers/bin}
examples=${CARGO_TARGET_DIR:-target}/release/examples
export TORTIE_PEERS=$peers

dir=$(mktemp -d)
etcd=
end() {
  [ -z "$etcd" ] || { kill "$etcd" && wait "$etcd"; } 2>/dev/null || true
  rm -rf "$dir"
}
trap end EXIT
trap 'exit 130' INT TERM

args=()
if [ -x "$peers/etcd" ]; then
  port=23790
  url=http://127.0.0.1:$port
  "$peers/etcd" --data-dir "$dir/etcd" --listen-client-urls "$url" --advertise-client-urls "$url" \
    --listen-peer-urls "http://127.0.0.1:$((port + 1))" --initial-advertise-peer-urls "http://127.0.0.1:$((port + 1))" \
    --initial-cluster "default=http://127.0.0.1:$((port + 1))" >"$dir/etcd.log" 2>&1 &
  etcd=$!
  for _ in $(seq 100); do
    "$peers/etcdctl" --endpoints "$url" endpoint health >/dev/null 2>&1 && break
    kill -0 "$etcd" 2>/dev/null || { cat "$dir/etcd.log" >&2; exit 1; }
    sleep 0.1
  done
  args+=(--store "etcd://127.0.0.1:$port")
fi
[ ! -x "$peers/cni/host-local" ] || args+=(--host-local "$peers/cni/host-local")

{
  "$examples/ipam_rate" "${args[@]}"
  "$examples/cni_latency" "${1:-100}"
} | tee "$dir/out"

# Input: "sqlite: 200 calls: 200 addresses, 60/s, p50 1.2 ms, ..."; "tortie-cni  DEL  100 containers  p50  1.2 ms  p99 ..."
awk '
  function after(word,  i) { for (i = 1; i < NF; i++) if ($i == word) return $(i + 1); return 0 }
  / calls: / { sub(":", "", $1); name[++n] = $1; half[$1] = after("p50"); most[$1] = after("p99") }
  / containers / {
    ours = $1 == "tortie-cni"; step = ours ? $2 : $4; if ($0 ~ /ping/) step = "ADD to first answered ping"
    if (ours) { mine[step] = after("p50"); order[++m] = step } else theirs[step] = after("p50")
  }
  END {
    ref = half["host-local"]
    for (i = 1; i <= n; i++) if (ref > 0 && name[i] != "host-local")
      printf "ratio: short calls, %s to host-local: p50 %.2f, p99 %.2f\n", name[i], half[name[i]] / ref, most[name[i]] / most["host-local"]
    for (i = 1; i <= m; i++) if (theirs[order[i]] > 0)
      printf "ratio: %s, tortie-cni to bridge with host-local: p50 %.2f\n", order[i], mine[order[i]] / theirs[order[i]]
  }' "$dir/out"
