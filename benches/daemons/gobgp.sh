# GoBGP: it writes to the kernel only through FRR's zebra, and its own routes are added through its API.
daemon_config() {
  awk -v own="$DIR/own" '
    $1 == "local" { me = $2; v = index(me, ":") ? 6 : 4
      printf "[global.config]\n as = %s\n router-id = \"10.64.0.1\"\n local-address-list = [\"%s\"]\n", $3, me }
    $1 == "peer" { printf "[[neighbors]]\n [neighbors.config]\n  neighbor-address = \"%s\"\n  peer-as = %s\n", $2, $3
      printf " [neighbors.timers.config]\n  hold-time = 240\n  connect-retry = 5\n [neighbors.transport.config]\n  local-address = \"%s\"\n", me
      if ($5 != "dial") print "  passive-mode = true"
      printf " [[neighbors.afi-safis]]\n  [neighbors.afi-safis.config]\n   afi-safi-name = \"ipv%d-unicast\"\n", v }
    $1 == "originate" { print $2 > own }' > "$DIR/gobgpd.toml"
}
daemon_start() {
  local p
  in_dut "$PEERS/gobgpd" -t toml -f "$DIR/gobgpd.toml" --api-hosts 127.0.0.1:50051 --pprof-disable -l warn
  [ -e "$DIR/own" ] || return 0
  while read -r p; do
    for ((i = 0; i < 300; i++)); do
      ! ip netns exec "$DUT" "$PEERS/gobgp" global rib add "$p" >/dev/null 2>&1 || break
      sleep 0.1
    done
  done < "$DIR/own"
}
daemon_lacks() { case $1 in E* | D*k | D5) true ;; *) false ;; esac; }
