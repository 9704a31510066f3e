# Tortie: a store with the peers as global peers. All learned routes may be announced; by default, a host announces only pools.
TORTIE=${TORTIE:-$PWD/target/release/tortie}

daemon_config() {
  # Keys and values are text, so a JSON value is a quoted string in the store's JSON.
  awk -v kernel="$DIR/kernel" '
    function put(key, value) { gsub(/"/, "\\\"", value); printf "%s\n\"/calico%s\": \"%s\"", sep, key, value; sep = "," }
    BEGIN { printf "{"; put("/v1/Ready", "true"); put("/bgp/v1/global/node_mesh", "{\"enabled\": false}") }
    $1 == "local" { v = index($2, ":") ? 6 : 4
      put("/bgp/v1/host/bench/ip_addr_v" v, $2); put("/bgp/v1/global/as_num", $3)
      put("/bgp/v1/global/prefix_advertisements/ip_v" v, "[{\"cidr\": \"" (v == 6 ? "::/0" : "0.0.0.0/0") "\", \"communities\": []}]") }
    $1 == "peer" { put("/bgp/v1/global/peer_v" v "/" $2,
      "{\"ip\": \"" $2 "\", \"as_num\": \"" $3 "\", \"passive_mode\": " ($5 == "dial" ? "false" : "true") "}") }
    $1 == "originate" { block = $2; sub("/26", "", block); all = "null"; free = "0"
      for (i = 1; i < 64; i++) { all = all ",null"; free = free "," i }
      put("/ipam/v2/host/bench/ipv4/block/" block "-26", "{\"state\": \"confirmed\"}")
      put("/ipam/v2/assignment/ipv4/block/" block "-26", "{\"cidr\": \"" $2 "\", \"affinity\": \"host:bench\", \"strictAffinity\": false, \"allocations\": [" all "], \"attributes\": [], \"unallocated\": [" free "]}") }
    $1 == "kernel" { programs = 1 }
    END { print (programs ? "program" : "off") > kernel; print "\n}" }' > "$DIR/store.json"
  "$TORTIE" --datastore "sqlite:$DIR/store.db" store import "$DIR/store.json" > "$DIR/log" 2>&1
}

daemon_start() {
  in_dut "$TORTIE" --datastore "sqlite:$DIR/store.db" --node bench --socket "$DIR/sock" \
    agent --policy off --kernel "$(cat "$DIR/kernel")" --http 127.0.0.1:9099 --cache "$DIR/cache"
}
