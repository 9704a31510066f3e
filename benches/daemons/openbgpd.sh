# OpenBGPD: it drops privileges to a user that a private /etc/passwd defines, and on Linux it does not write to the kernel.
daemon_config() {
  awk -v socket="$DIR/socket" '
    $1 == "local" { me = $2; v = index(me, ":") ? 6 : 4
      print "AS " $3 "\nrouter-id 10.64.0.1\nlisten on " me "\nfib-update no\nholdtime 240\nsocket \"" socket "\"" }
    $1 == "originate" { print "network " $2 }
    $1 == "peer" { printf "neighbor %s {\n remote-as %s\n local-address %s\n enforce neighbor-as no\n multihop 5\n", $2, $3, me
      print v == 6 ? " announce IPv6 unicast\n announce IPv4 none" : " announce IPv6 none"
      print ($5 == "dial" ? "" : " passive\n") "}" }
    END { print "allow from any\nallow to any" }' > "$DIR/bgpd.conf"
  chmod 600 "$DIR/bgpd.conf"; chmod 755 "$DIR"; mkdir "$DIR/empty"
  # An installed user must not get a second line.
  grep -v '^_openbgpd:' /etc/passwd > "$DIR/passwd"; grep -v '^_openbgpd:' /etc/group > "$DIR/group"
  echo "_openbgpd:x:64999:64999::$DIR/empty:/usr/sbin/nologin" >> "$DIR/passwd"; echo "_openbgpd:x:64999:" >> "$DIR/group"
}
daemon_start() {
  in_dut unshare -m sh -c 'mount --bind "$0/passwd" /etc/passwd && mount --bind "$0/group" /etc/group && exec "$1" -d -f "$0/bgpd.conf"' \
    "$DIR" "$PEERS/openbgpd"
}
daemon_lacks() { case $1 in E* | D*k) true ;; *) false ;; esac; }
