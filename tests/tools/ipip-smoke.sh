#!/bin/bash
# ipip-smoke.sh - two hosts in namespaces, a tunnel between them, a ping through it. Run it where ipip exists:
#   tests/tools/uml-run.sh -- tests/tools/ipip-smoke.sh
set -eu
ip netns add left; ip netns add right
ip link add eth1 netns left type veth peer name eth1 netns right
for side in "left 1 2" "right 2 1"; do
  set -- $side
  ip -n "$1" link set lo up; ip -n "$1" link set eth1 up
  ip -n "$1" addr add "10.0.0.$2/24" dev eth1
  ip -n "$1" link add tun9 type ipip local "10.0.0.$2" remote "10.0.0.$3"
  ip -n "$1" addr add "10.244.$2.1/32" dev tun9
  ip -n "$1" link set tun9 up
  ip -n "$1" route add "10.244.$3.0/26" dev tun9
done
ping=${PING:-ping}
ip netns exec left "$ping" -c 2 -i 0.2 -W 2 -I 10.244.1.1 10.244.2.1
ip -n left -s link show dev tun9
