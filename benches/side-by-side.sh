#!/bin/bash
# side-by-side.sh - compares Tortie with other BGP daemons: whole processes under the same load, one after the other.
#
#   benches/side-by-side.sh [-s "A B C"] [-d "tortie bird"] [-n RUNS] [-t SECONDS] [-o FILE] [-m v6] [-i SECONDS] [-M MRT-FILE]...
#
#   -s  scenarios, which benches/README.md describes; default: all but R
#   -d  daemons: the files of benches/daemons; default: all
#   -n  number of runs of each; the table shows medians; default 1
#   -t  time limit of a run in seconds; default 120
#   -o  file to which results are appended, one JSON object per line; default target/bench.jsonl, emptied first
#   -m  v6: IPv6 prefixes over IPv6 sessions
#   -i  duration in seconds of the idle measurement after D
#   -M  an MRT file for R; name table dumps first, then recorded updates
#
# The daemon and the load generator (examples/bgp_load), whose peers have one address each, run in two network namespaces
# joined by a veth pair, which are removed at the end. Needs root, release builds of both programs, and `make peers`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SCENARIOS="A B C D D5 Dk D5k Dburst E E1000 Gup Gdown" DAEMONS="tortie bird frr openbgpd gobgp" RUNS=1 TIMEOUT=120 OUT= mix=() idle=() mrt=()
usage() { sed -n 's/^# \{0,1\}//; 2,/^$/p' "$0" | sed -n '2,14p' >&2; exit 2; }
while getopts s:d:n:t:o:m:i:M: o; do
  case $o in
    s) SCENARIOS=$OPTARG ;; d) DAEMONS=$OPTARG ;; n) RUNS=$OPTARG ;; t) TIMEOUT=$OPTARG ;; o) OUT=$OPTARG ;;
    m) mix=(--mix "$OPTARG") ;; i) idle=(--idle "$OPTARG") ;; M) mrt+=(--mrt "$OPTARG") ;; *) usage ;;
  esac
done
say() { echo "bench: $*" >&2; }
[ "$(id -u)" = 0 ] || { say "network namespaces need root"; exit 4; }
LOAD=${LOAD:-$PWD/target/release/examples/bgp_load} PEERS=${TORTIE_PEERS:-$PWD/target/peers/bin}
[ -x "$LOAD" ] || { say "$LOAD is missing: cargo build --release --example bgp_load"; exit 4; }
for d in $DAEMONS; do [ -e "benches/daemons/$d.sh" ] || { say "no benches/daemons/$d.sh"; exit 2; }; done
if [ -z "$OUT" ]; then OUT=target/bench.jsonl; : > "$OUT"; fi

DUT=bench$$d GEN=bench$$g DIR=$(mktemp -d) pid=

# --- functions for the files of benches/daemons
# Each file defines daemon_config (PLAN on standard input: see `bgp_load plan`) and daemon_start, and overrides the defaults
# of daemon_pids, daemon_stop and daemon_lacks SCENARIO below if needed. It writes to $DIR; programs are in $PEERS.

# Runs a command in the daemon's namespace, in the background; sets $pid, and writes the start time to $DIR/started.
in_dut() {
  ip netns exec "$DUT" bash -c 'echo "$EPOCHREALTIME" > "$0/started"; exec "$@"' "$DIR" "$@" >>"$DIR/log" 2>&1 &
  pid=$!
}
tree() { local c; echo "$1"; for c in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do tree "$c"; done; }
listens() { ip netns exec "$DUT" ss -Hltn "sport = :179" | grep -q .; }
defaults() {
  daemon_pids() { tree "$pid"; }
  daemon_stop() { [ -z "$pid" ] || { kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; pid=; }; }
  daemon_lacks() { false; }
}

# --- the lab
defaults
namespaces_gone() { ip netns del "$DUT" 2>/dev/null || true; ip netns del "$GEN" 2>/dev/null || true; }
trap 'daemon_stop; namespaces_gone; rm -rf "$DIR"' EXIT
trap 'exit 130' INT TERM

namespaces() {
  ip netns add "$DUT"; ip netns add "$GEN"
  ip -n "$DUT" link set lo up; ip -n "$GEN" link set lo up
  ip -n "$DUT" link add d0 type veth peer name g0 netns "$GEN"
  ip netns exec "$DUT" sysctl -qw net.ipv6.conf.d0.accept_dad=0
  ip netns exec "$GEN" sysctl -qw net.ipv6.ip_nonlocal_bind=1
  ip -n "$DUT" addr add 10.64.0.1/12 dev d0; ip -n "$DUT" addr add fd64::1/16 dev d0 nodad; ip -n "$DUT" link set d0 up
  ip -n "$GEN" addr add 10.64.0.2/12 dev g0; ip -n "$GEN" addr add fd64::2/16 dev g0 nodad; ip -n "$GEN" link set g0 up
  # A local route gives each peer an address without configuring thousands of them (IPv6 also needs ip_nonlocal_bind).
  # Permanent neighbour entries for the peers in use keep the daemon's neighbour table from overflowing.
  ip -n "$GEN" route add local 10.65.0.0/16 dev lo
  ip -n "$GEN" -6 route add local fd64:65::/32 dev lo
  local mac; mac=$(ip -n "$GEN" -br link show g0 | awk '{ print $3 }')
  awk -v mac="$mac" '$1 == "peer" { print "neigh replace", $2, "lladdr", mac, "dev d0 nud permanent" }' "$DIR/plan" \
    | ip -n "$DUT" -batch -
}

run() { # DAEMON SCENARIO NUMBER
  local daemon=$1 scenario=$2 rows="$DIR/rows" generator
  defaults; . "benches/daemons/$daemon.sh"
  if daemon_lacks "$scenario"; then return 0; fi
  rm -rf "${DIR:?}"/*
  "$LOAD" plan "$scenario" "${mix[@]}" "${mrt[@]}" > "$DIR/plan"
  namespaces
  daemon_config < "$DIR/plan"
  local load=("$LOAD" run "$scenario" "${mix[@]}" "${mrt[@]}" --timeout "$TIMEOUT" "${idle[@]}")
  : > "$rows"
  if grep -q ' dial$' "$DIR/plan"; then
    ip netns exec "$GEN" "${load[@]}" --started "$DIR/started" > "$rows" & generator=$!
    for ((i = 0; i < 100; i++)); do ip netns exec "$GEN" ss -Hltn "sport = :179" | grep -q . && break; sleep 0.05; done
    daemon_start
    wait "$generator" || say "$daemon $scenario failed; the end of its log:" "$(tail -5 "$DIR/log")"
  else
    daemon_start
    for ((i = 0; i < 600; i++)); do listens && break; sleep 0.1; done
    sleep 1
    ip netns exec "$GEN" "${load[@]}" --pids "$(daemon_pids | paste -sd,)" > "$rows" \
      || { say "$daemon $scenario failed; the end of its log:"; tail -5 "$DIR/log" >&2
           echo "{\"scenario\":\"$scenario\",\"seconds\":null}" > "$rows"; }
  fi
  sed "s/^{/{\"daemon\":\"$daemon\",\"run\":$3,/" "$rows" | tee -a "$OUT"
  daemon_stop; namespaces_gone
}

for s in $SCENARIOS; do for ((n = 1; n <= RUNS; n++)); do for d in $DAEMONS; do run "$d" "$s" "$n"; done; done; done
"$LOAD" table "$OUT"
