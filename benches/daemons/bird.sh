# BIRD 2: one protocol per peer, without connect and error delays.
daemon_config() {
  awk '
    $1 == "local" { me = $2; as = $3; v = index(me, ":") ? 6 : 4
      print "log stderr { error, fatal, bug };\nrouter id 10.64.0.1;\nprotocol device { scan time 3600; }" }
    $1 == "peer" { n++; peers = peers sprintf("protocol bgp p%d from %s { neighbor %s as %s;%s }\n", n,
      $4 == "node" ? "node" : "full", $2, $3, $5 == "dial" ? "" : " passive;") }
    $1 == "originate" { own = own "  route " $2 " blackhole;\n" }
    $1 == "kernel" { kernel = 1 }
    END {
      if (own) print "protocol static { ipv" v ";\n" own "}"
      common = "local " me " as " as "; strict bind yes; hold time 240; direct;"
      print "template bgp full { " common " ipv" v " { import all; export all; next hop self ebgp; }; }"
      print "template bgp node { " common " ipv" v " { import all; export where source = RTS_STATIC; }; }"
      if (kernel) print "protocol kernel { scan time 3600; merge paths yes; ipv" v " { import none; export where source = RTS_BGP; }; }"
      printf "%s", peers
    }' > "$DIR/bird.conf"
}
daemon_start() { in_dut "$PEERS/bird" -f -c "$DIR/bird.conf" -s "$DIR/ctl" -P "$DIR/pid"; }
