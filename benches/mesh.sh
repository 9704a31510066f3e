#!/bin/bash
# mesh.sh - scenario D: a node of a mesh with many peers, our agent and BIRD 2 beside each other.
#
#   benches/mesh.sh [-n "1000 5000"] [-d "bird tortie"] [-r RUNS] [-b] [-i IDLE-SECONDS]
#
# Two network namespaces joined by a veth pair, removed at the end: in one the daemon, in the other the load generator
# (examples/bgp_load), whose peers have an address each. -b: all peers connect in the same instant. One JSON object a
# run. Needs root, release builds of the agent and the generator, and make peers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PEERS="1000 5000" DAEMONS="bird tortie" RUNS=3 IDLE=10 burst=()
while getopts n:d:r:i:b o; do
  case $o in n) PEERS=$OPTARG ;; d) DAEMONS=$OPTARG ;; r) RUNS=$OPTARG ;; i) IDLE=$OPTARG ;; b) burst=(--burst) ;; *) exit 2 ;; esac
done
[ "$(id -u)" = 0 ] || { echo "mesh.sh: network namespaces need root" >&2; exit 4; }
LOAD=${LOAD:-target/release/examples/bgp_load} AGENT=${AGENT:-target/release/tortie}
BIRD=${TORTIE_PEERS:-target/peers/bin}/bird
dut=mesh$$d gen=mesh$$g dir=$(mktemp -d) pid=
daemon_stop() { [ -z "$pid" ] || { kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; pid=; }; }
namespaces_gone() { ip netns del "$dut" 2>/dev/null || true; ip netns del "$gen" 2>/dev/null || true; }
trap 'daemon_stop; namespaces_gone; rm -rf "$dir"' EXIT

namespaces() { # PEERS
  ip netns add "$dut"; ip netns add "$gen"
  ip -n "$dut" link set lo up; ip -n "$gen" link set lo up
  ip -n "$dut" link add d0 type veth peer name g0 netns "$gen"
  ip -n "$dut" addr add 10.64.0.1/12 dev d0; ip -n "$dut" link set d0 up
  ip -n "$gen" addr add 10.64.0.2/12 dev g0; ip -n "$gen" link set g0 up
  # Each peer an address, without as many addresses; and no more neighbours than the table takes.
  ip -n "$gen" route add local 10.65.0.0/16 dev lo
  local mac i; mac=$(ip -n "$gen" -br link show g0 | awk '{ print $3 }')
  for ((i = 1; i <= $1; i++)); do
    echo "neigh replace 10.65.$((i / 256)).$((i % 256)) lladdr $mac dev d0 nud permanent"
  done | ip -n "$dut" -batch -
}

for n in $PEERS; do for daemon in $DAEMONS; do for ((run = 1; run <= RUNS; run++)); do
  namespaces "$n"
  load=("$LOAD" --target 10.64.0.1:179 --peers "$n" --first 10.65.0.1 --observer 10.64.0.2 --kernel)
  case $daemon in
    bird)
      "${load[@]}" --bird-config > "$dir/bird.conf"
      ip netns exec "$dut" "$BIRD" -f -c "$dir/bird.conf" -s "$dir/ctl" -P "$dir/pid" 2>"$dir/log" & pid=$! ;;
    tortie)
      rm -f "$dir"/store.db*
      "${load[@]}" --store | "$AGENT" --datastore "sqlite:$dir/store.db" store import - >/dev/null
      ip netns exec "$dut" "$AGENT" --datastore "sqlite:$dir/store.db" --node bench --socket "$dir/sock" \
        agent --policy off --http 127.0.0.1:9099 --cache "$dir/cache" 2>"$dir/log" >&2 & pid=$! ;;
  esac
  for ((i = 0; i < 100; i++)); do
    ip netns exec "$dut" ss -Hltn "sport = :179" | grep -q . && break; sleep 0.1
  done
  sleep 1
  if out=$(ip netns exec "$gen" "${load[@]}" --pid "$pid" --idle "$IDLE" --timeout "${TIMEOUT:-120}" "${burst[@]}"); then
    echo "{\"daemon\":\"$daemon\",\"run\":$run,${out#\{}"
  else
    tail -5 "$dir/log" >&2
  fi
  daemon_stop; namespaces_gone
done; done; done
