# FRR: bgpd, and zebra in scenarios that measure the kernel's table.
daemon_config() {
  awk -v kernel="$DIR/kernel" '
    $1 == "local" { me = $2; as = $3; v = index(me, ":") ? 6 : 4
      print "router bgp " as "\n bgp router-id 10.64.0.1\n no bgp ebgp-requires-policy\n no bgp network import-check"
      print " no bgp default ipv4-unicast\n timers bgp 80 240" }
    $1 == "peer" { print " neighbor " $2 " remote-as " $3 "\n neighbor " $2 " update-source " me
      if ($5 != "dial") print " neighbor " $2 " passive"
      family = family "  neighbor " $2 " activate\n" }
    $1 == "originate" { family = family "  network " $2 "\n" }
    $1 == "kernel" { print "yes" > kernel }
    END { printf " address-family ipv%d unicast\n%s exit-address-family\n", v, family }' > "$DIR/bgpd.conf"
  : > "$DIR/zebra.conf"
}
daemon_start() {
  local common=(-u root -g root -P 0 --vty_socket "$DIR" -z "$DIR/zserv" --log stdout) zebra=(-Z)
  [ ! -e "$DIR/kernel" ] || {
    grep -v '^frrvty:' /etc/group > "$DIR/group"; echo 'frrvty:x:64998:root' >> "$DIR/group"
    in_dut unshare -m sh -c 'mount --bind "$0" /etc/group && exec "$@"' "$DIR/group" "$PEERS/frr-zebra" "${common[@]}" -f "$DIR/zebra.conf" -i "$DIR/zebra.pid"; other=$pid zebra=()
    for ((i = 0; i < 100; i++)); do [ ! -S "$DIR/zserv" ] || break; sleep 0.05; done
  }
  in_dut "$PEERS/frr-bgpd" "${common[@]}" "${zebra[@]}" -S -p 179 -f "$DIR/bgpd.conf" -i "$DIR/bgpd.pid"
}
daemon_pids() { tree "$pid"; [ -z "${other:-}" ] || tree "$other"; }
daemon_stop() {
  local p
  for p in $pid ${other:-}; do kill "$p" 2>/dev/null || true; wait "$p" 2>/dev/null || true; done
  pid= other=
}
