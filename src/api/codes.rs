//! Every problem code of `status`, `doctor` and `migrate check`, and every reason for withholding or
//! rejecting a route: one list, so that a code has the same meaning in `status`, `why`, metrics and
//! docs/reference/problems.md.
//!
//! Codes are listed by severity: `status` shows the most severe first. `{}` in a next step is replaced by the
//! subject: a session, a prefix, a key or an endpoint.

use std::fmt;

/// The place where a code is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In `problems` of `status`: an error or a degradation.
    Problem,
    /// In `notes` of `status` or of a peer: correct but unexpected.
    Note,
    /// In `why peer`: the cause of a session that is not established.
    Cause,
    /// An export gate: the reason for announcing or withholding a route.
    Export,
    /// The reason for not using a route that a peer sent.
    Import,
    /// The reason for not installing a usable route in the kernel.
    Kernel,
    /// A host check, only in `tortie doctor` and `tortie migrate check`.
    HostCheck,
}

impl Kind {
    /// Returns the kind as text: `problem`, `note`, `cause`, `export`, `import`, `kernel` or `host-check`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Note => "note",
            Self::Cause => "cause",
            Self::Export => "export",
            Self::Import => "import",
            Self::Kernel => "kernel",
            Self::HostCheck => "host-check",
        }
    }
}

/// A code with its meaning, next step and default severity.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    /// Stable name, for programs.
    pub name: &'static str,
    /// Meaning, in one sentence.
    pub about: &'static str,
    /// Command that explains the problem, or the remaining step; `{}` stands for the subject.
    pub next: &'static str,
    /// Default severity of problems with this code; the reporter may override it.
    pub severity: Severity,
}

/// Severity of a problem, in ascending order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Correct but unexpected.
    Note,
    /// Working, but degraded or wrong in part.
    #[default]
    Warning,
    /// Not working.
    Failure,
}

impl Code {
    /// Returns the next step with `subject` filled in.
    #[must_use]
    pub fn next(&self, subject: &str) -> String {
        self.next.replace("{}", subject)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! codes {
    ($(#[$list_about:meta])* $list:ident $severity:ident: $($const:ident $name:literal $about:literal, $next:literal;)*) => {
        $(
            #[doc = $about]
            pub const $const: Code = Code { name: $name, about: $about, next: $next, severity: Severity::$severity };
        )*
        $(#[$list_about])*
        pub const $list: &[Code] = &[$($const),*];
    };
}

codes! {
    /// Problems, the most severe first.
    PROBLEMS Warning:
    CALICO_3 "calico-3"
        "The data model of the store changed while the agent ran (Calico 3's objects appeared, or are gone); or this command does not write a store of Calico 3.",
        "tortie store ls /calico/resources/v3/, and tortie store accept, if the store is right as it is";
    DUPLICATE_NODE "duplicate-node"
        "Another machine runs an agent under this host's name.",
        "tortie status --all-nodes, and another --node NAME on one of the two machines";
    HOST_RENAMED "host-renamed"
        "This host starts under another name than its workloads, its routes or its cache have.",
        "tortie node list, and --node with the former name; or tortie node delete of that name and tortie store accept";
    UNKNOWN_WORKLOADS "unknown-workloads"
        "Workloads are attached to this host, and the store has no endpoint of it; nothing of them is removed.",
        "tortie store accept, if no store has their endpoints";
    STORE_DAMAGED "store-damaged"
        "The SQLite file of the store is damaged: Tortie no longer writes to it, and the last good state stays in force.",
        "tortie store export --cache, and the other steps of \"A damaged SQLite store\" in docs/how-to/restore.md";
    STORE_REWOUND "store-rewound"
        "The store was restored to an earlier state: later writes are lost, and the state in force stays.",
        "tortie store accept, after the lost keys were written again";
    FROZEN "frozen"
        "The store changed in a way that the agent does not follow (a loss, another cluster, `Ready` not true); forwarding stays as it was.",
        "tortie store accept, if the store is right as it is";
    STORE_AWAY "store-away"
        "The store does not answer; the last good state stays in force.",
        "tortie doctor";
    MIXED_MODELS "mixed-models"
        "The store has keys of Calico's v1 data model and objects of Calico 3; the objects are used.",
        "tortie store ls /calico/resources/v3/";
    STORE_READ_ONLY "store-read-only"
        "The store answers and rejects writes (its disk or its quota is full, or the user has no right to write), so no workload can be added.",
        "tortie doctor";
    FROM_CACHE "from-cache"
        "The agent runs from its cache on disk, because the store has not answered since it started.",
        "tortie doctor";
    STALE_REVISION "stale-revision"
        "The store answers, but its watch has brought no proof of freshness for too long: the state in force may be old.",
        "tortie doctor";
    MISSING_CAPABILITY "missing-capability"
        "The agent lacks a Linux capability that it needs, so a part of its work cannot be done.",
        "tortie doctor";
    LISTEN "listen"
        "BGP cannot listen on an address: the port is in use, or the host does not have the address.",
        "tortie doctor";
    FORWARDING_OFF "forwarding-off"
        "The kernel does not forward packets of a family that is routed here.",
        "tortie doctor";
    FORWARD_DROPPED "forward-dropped"
        "Packet rules of another program drop forwarded packets of workloads that their policies allow.",
        "tortie doctor";
    RULES "rules"
        "Packet rules cannot be enforced.",
        "tortie diff rules";
    UNCODED "trouble"
        "A part of the agent reports a problem that has no code of its own.",
        "journalctl -u tortie";
    PEER_CONFIGURATION "peer-configuration"
        "The value of a peer or of a range of peers cannot be applied.",
        "tortie why peer {}";
    PEER_DOWN "peer-down"
        "A configured BGP session is not established.",
        "tortie why peer {}";
    FILTER_MISSING "filter-missing"
        "A peer names a filter that does not exist: only the blocks of this host pass.",
        "tortie store get {}";
    ALL_ROUTES_REFUSED "all-routes-refused"
        "Import refuses every route that a peer announces.",
        "tortie bgp routes --from {}";
    PREFIX_LIMIT "prefix-limit"
        "A peer announces more prefixes than its `max_prefixes` allows, or nearly so.",
        "tortie why peer {}";
    SLOW_PEER "slow-peer"
        "A peer does not read: messages to it have waited for more than half a minute.",
        "tortie why peer {}";
    RANGE_FULL "range-full"
        "A range of peers has reached its maximum number of sessions, and connections were refused.",
        "tortie bgp ranges";
    DUPLICATE_ADDRESS "duplicate-address"
        "Two endpoints, or two hosts, claim one address.",
        "tortie why ip {}";
    BLACKHOLE "blackhole"
        "The kernel refuses the blackhole route of an own block, so the block is not announced.",
        "tortie why route {}";
    ROUTE_FAILED "route-failed"
        "The kernel refuses a route.",
        "tortie why route {}";
    ROUTE_WITHHELD "route-withheld"
        "A learned route is not in the kernel, because its next hop is not reachable or its tunnel or network is missing.",
        "tortie why route {}";
    DRIFT "drift"
        "The kernel differs from the intended state: another process changed routes, rules or sets.",
        "tortie diff {}";
    ENDPOINT_FAILED "endpoint-failed"
        "An endpoint of this host is not in its desired state.",
        "tortie endpoint show {}";
    TUNNEL "tunnel"
        "A tunnel that a pool needs, IPIP or VXLAN, cannot be created.",
        "tortie doctor";
    TUNNEL_ADDRESS "tunnel-address"
        "This host gets no address in the tunnel.",
        "tortie ipam pools";
    POOL_OVER_NETWORK "pool-over-network"
        "A pool overlaps an address or a network of a host: those addresses are never allocated.",
        "tortie doctor";
    BLOCK_WITHHELD "block-withheld"
        "A block of this host overlaps the host's own network, which its routes would cut off: it has no blackhole and is not announced, but its addresses in use are.",
        "tortie why route {}";
    SETTING_REFUSED "setting-refused"
        "A setting would cut this host off from the network, or does not apply here: the last good value stays in force.",
        "tortie node settings";
    INVALID_VALUE "invalid-value"
        "A value in the store cannot be read; that object keeps its last good value, or denies.",
        "tortie store validate";
    UNSUPPORTED_SETTING "unsupported-setting"
        "An object of Calico 3 asks for something that Tortie does not do; what it concerns stays closed, or as it was.",
        "tortie store get {}";
    SETTING_NOT_IN_FORCE "setting-not-in-force"
        "A member of a Calico 3 object has no effect on this host, although Calico would give it one.",
        "tortie store get {}";
    CONNTRACK_FULL "conntrack-full"
        "The table of connections is nearly full, or full: new connections are dropped.",
        "tortie doctor";
    RP_FILTER "rp-filter"
        "An interface drops packets that arrive over another interface than replies leave by (strict `rp_filter`).",
        "tortie doctor";
    TUNNEL_MTU "tunnel-mtu"
        "Encapsulated packets of the tunnel's MTU do not fit into the link below: large packets are lost.",
        "tortie doctor";
    WORKLOAD_MTU "workload-mtu"
        "The MTU of a workload is larger than that of the link out of this host.",
        "tortie doctor";
    CLOCK_JUMP "clock-jump"
        "The clock was set by more than a few seconds: times in logs, histories and leases are inconsistent.",
        "tortie doctor";
    NO_ADDRESSES "no-addresses"
        "No address is left for a workload of this host.",
        "tortie ipam pools";
    LEAKED_ADDRESSES "leaked-addresses"
        "Addresses are allocated, but no endpoint has them.",
        "tortie ipam check";
    COLLECTOR "collector"
        "The garbage collection of leaked addresses fails.",
        "tortie ipam check";
    VERSION_SKEW "version-skew"
        "Hosts run versions of the agent that differ by more than one minor number, or write another store format.",
        "tortie status --all-nodes";
    DISK_FULL "disk-full"
        "The file system of the store, the cache or the log is full, or nearly so.",
        "tortie doctor";
    CACHE_FILE "cache-file"
        "The cache on disk cannot be written: after a restart without the store the agent would run from an older state.",
        "journalctl -u tortie";
    MTU_FILE "mtu-file"
        "The file with the MTU of workloads, which CNI plugins read on a store of Calico 3, cannot be written.",
        "journalctl -u tortie";
    LOG_FILE "log-file"
        "The log file cannot be written; the log goes to the screen only.",
        "tortie store ls /calico/v1/config/LogFilePath";
}

codes! {
    /// Notes: correct but unexpected conditions.
    NOTES Note:
    LOG_LEVEL "log-level"
        "A temporary log level is set.",
        "tortie log level --reset";
    NODE_WITHOUT_ADDRESS "node-without-address"
        "This host has no address in the store and takes no part in BGP.",
        "tortie node show {}";
    NO_POOL "no-pool"
        "There is no address pool, so no workload can get an address.",
        "tortie ipam pools";
    SQLITE_SERVES_ONE_MACHINE "sqlite-serves-one-machine"
        "The store is SQLite, which serves one machine, and names hosts of other machines.",
        "tortie node list";
    SHARED_ADDRESS "shared-address"
        "Several hosts claim one BGP address.",
        "tortie node list";
    PEER_AS_DIFFERS "peer-as-differs"
        "A peer's value has another AS than the host at that address: the session cannot come up.",
        "tortie bgp peers";
    HOST_WITHOUT_ADDRESS "host-without-address"
        "A host of the store has no BGP address, so it has no session.",
        "tortie node list";
    UNREAD "unread"
        "A member of a value, a setting or a key that Tortie does not read: it may be misspelt.",
        "tortie store validate";
    SETTING_NOTED "setting-noted"
        "A member of a Calico 3 object works in another way than with Calico.",
        "tortie store get {}";
    DUPLICATE_POLICY "duplicate-policy"
        "Two policies of a Calico 3 store have one name for its clients, with and without `default.`, and both are in force.",
        "tortie policy list";
    FILTER_UNREADABLE "filter-unreadable"
        "A peer names a filter that never had a valid value: only the blocks of this host pass.",
        "tortie store validate";
    CUSTOM_FILTER_IGNORED "custom-filter-ignored"
        "A filter in BIRD's language is not run.",
        "tortie store get {}";
    NO_NETWORK "no-network"
        "A cross-subnet pool needs the network of this host, which is not in the store.",
        "tortie node list -o wide";
    NETWORK_OF_ONE_ADDRESS "network-of-one-address"
        "The network of this host is one address, so that a cross-subnet pool tunnels to every host.",
        "tortie node list -o wide";
    IPIP_NO_ROUTE "ipip-no-route"
        "Addresses of an IPIP pool whose routes come from the store (ProgramClusterRoutes) are not reached: their host has no address, or the route would cut hosts off.",
        "tortie why route {}";
    VXLAN_NO_ROUTE "vxlan-no-route"
        "Addresses of a VXLAN pool are not reached: their host has no end of the tunnel, or the route would cut hosts off.",
        "tortie why route {}";
    NAT_LEFT_OUT "nat-left-out"
        "A floating address maps to an address that its endpoint does not have; the mapping is left out.",
        "tortie store get {}";
    OWN_ONLY_HINT "own-only-hint"
        "Several hosts peer with one router, which receives every block from each of them.",
        "tortie bgp peers";
    IMPORT_POOLS_HINT "import-pools-hint"
        "A router announces prefixes inside pools that no host announced: it could attract the traffic of workloads.",
        "tortie bgp routes --from {}";
    ROUTES_REFUSED "routes-refused"
        "Import refuses routes that a peer announces.",
        "tortie bgp routes --from {}";
    MALFORMED_UPDATE "malformed-update"
        "A peer sent an UPDATE with errors: its routes were treated as withdrawn, or an attribute was discarded (RFC 7606).",
        "tortie why peer {}";
    ROUTES_HELD_BACK "routes-held-back"
        "Export filters, or a limit of the peer, withhold routes that would be announced otherwise.",
        "tortie status -o wide";
    PACKETS_DENIED "packets-denied"
        "Packet rules dropped packets in the last minutes.",
        "tortie why drop";
    FOREIGN_CHANGES "foreign-changes"
        "Another process changed our kernel state recently; it was repaired.",
        "tortie diff";
    DRAINED "drained"
        "Sessions announce a graceful shutdown (RFC 8326).",
        "tortie bgp drain --undo";
    DIFF_HELD "diff-held"
        "A drift hold is active: changes of other processes to own routes and rules are not repaired.",
        "tortie diff --repair";
    BMP_STATION_AWAY "bmp-station-away"
        "A BMP station is not connected.",
        "tortie store get /calico/bgp/v1/global/bmp_stations";
}

codes! {
    /// Causes of a session that is not established: the codes of `tortie why peer`.
    CAUSES Note:
    CAUSE_CONNECTION_REFUSED "connection-refused" "The peer's host answers, and no process listens on its port.", "tortie why peer {}";
    CAUSE_CONNECT_TIMEOUT "connect-timeout" "Packets are sent and none comes back: a firewall drops them, or the TCP keys differ.", "tortie why peer {}";
    CAUSE_TCP_KEY "tcp-key" "Packets between both ends fail the check of their TCP key (RFC 2385, RFC 5925): the passwords differ.", "tortie why peer {}";
    CAUSE_TTL_SECURITY "ttl-security" "Packets come from further away than `ttl_security` allows, or from a peer that does not send TTL 255 (RFC 5082).", "tortie why peer {}";
    CAUSE_NO_NEIGHBOUR "no-neighbour" "The peer's host, or the gateway, does not answer ARP or neighbour discovery.", "tortie why peer {}";
    CAUSE_HOST_UNREACHABLE "host-unreachable" "A router on the path reports that the peer's host is unreachable.", "tortie why peer {}";
    CAUSE_NO_ROUTE "no-route" "This host has no route to the peer.", "tortie why peer {}";
    CAUSE_LINK_DOWN "link-down" "The interface to the peer is down or has no carrier.", "tortie why peer {}";
    CAUSE_DAMPED "damped" "Connections of the peer are refused for a while: too many failed in a row.", "tortie why peer {}";
    CAUSE_OWN_ADDRESS "own-address" "The peer's address is one of this host's own.", "tortie why peer {}";
    CAUSE_NO_LOCAL_ADDRESS "no-local-address" "The source address of the connection is not on this host.", "tortie why peer {}";
    CAUSE_CONNECT_FAILED "connect-failed" "The connection failed for another reason, which the text states.", "tortie why peer {}";
    CAUSE_TCP_CLOSED "tcp-closed" "The peer closed TCP without a NOTIFICATION.", "tortie why peer {}";
    CAUSE_BAD_PEER_AS "bad-peer-as" "The two ends are configured with different AS numbers.", "tortie why peer {}";
    CAUSE_BAD_IDENTIFIER "bad-identifier" "The two ends have the same BGP identifier, or one of them has none.", "tortie why peer {}";
    CAUSE_UNACCEPTABLE_HOLD_TIME "unacceptable-hold-time" "A hold time is refused.", "tortie why peer {}";
    CAUSE_UNSUPPORTED_CAPABILITY "unsupported-capability" "A capability that one end needs is not offered by the other.", "tortie why peer {}";
    CAUSE_ROLE_MISMATCH "role-mismatch" "The roles of the two ends do not match (RFC 9234).", "tortie why peer {}";
    CAUSE_OPEN_REFUSED "open-refused" "An OPEN is refused for another reason.", "tortie why peer {}";
    CAUSE_HOLD_TIMER "hold-timer" "The hold timer expired: no message was received.", "tortie why peer {}";
    CAUSE_SEND_HOLD_TIMER "send-hold-timer" "Nothing could be sent for too long (RFC 9687).", "tortie why peer {}";
    CAUSE_BFD "bfd" "BFD lost the peer.", "tortie why peer {}";
    CAUSE_MAX_PREFIXES "max-prefixes" "One end announces more prefixes than the other allows.", "tortie why peer {}";
    CAUSE_MESSAGE_ERROR "message-error" "A message could not be processed.", "tortie why peer {}";
    CAUSE_CONNECTION_REJECTED "connection-rejected" "One end rejects the connection (Cease/Connection Rejected).", "tortie why peer {}";
    CAUSE_OUT_OF_RESOURCES "out-of-resources" "One end has no resources left (Cease 8).", "tortie why peer {}";
    CAUSE_COLLISION "collision" "Both ends connected, and one connection was closed (RFC 4271 6.8).", "tortie why peer {}";
    CAUSE_PEER_SHUTDOWN "peer-shutdown" "An administrator shut the session down.", "tortie why peer {}";
    CAUSE_PEER_SHUTDOWN_HERE "peer-shutdown-here" "An administrator of this host shut the session down.", "tortie why peer {}";
    CAUSE_PEER_DECONFIGURED "peer-deconfigured" "This host is no longer configured as a neighbour at the peer.", "tortie why peer {}";
    CAUSE_ADMIN_RESET "admin-reset" "An administrator reset the session.", "tortie why peer {}";
    CAUSE_CEASE "cease" "The session was ended with another Cease.", "tortie why peer {}";
    CAUSE_CONFIG "config" "The session was ended because its settings changed.", "tortie why peer {}";
    CAUSE_PASSIVE "passive" "This end waits for the peer to connect.", "tortie why peer {}";
    CAUSE_NOT_TRIED "not-tried" "No connection attempt has ended yet.", "tortie why peer {}";
    CAUSE_NOT_WANTED "not-wanted" "No session with it is configured on this host.", "tortie why peer {}";
    CAUSE_UNKNOWN "unknown" "The cause cannot be derived from the available state.", "tortie why peer {}";
}

codes! {
    /// The gates of export policy in their order, followed by the reasons other than policy that withhold a
    /// route.
    EXPORT_REASONS Note:
    OWN_BLOCK "own-block" "Equal to a block of this host: announced.", "tortie ipam blocks";
    INSIDE_OWN_BLOCK "inside-own-block" "Inside a block of this host, which covers it: withheld.", "tortie ipam blocks";
    OWN_ONLY "own-only" "The eBGP peer has `own_only` and the route was learned: withheld.", "tortie why peer {}";
    FILTER "filter" "The peer's filters decide.", "tortie store ls /calico/bgp/v1/global/filters/";
    ADVERTISED "advertised" "Equal to or inside a prefix of `prefix_advertisements`: announced.", "tortie store ls /calico/bgp/v1/";
    POOL "pool" "Equal to or inside a pool: announced.", "tortie ipam pools";
    NONE "none" "No gate announces it: withheld.", "tortie ipam pools";
    DISABLE_BGP_EXPORT "disable-bgp-export" "Calico 3: inside a pool with `disableBGPExport`: withheld.", "tortie ipam pools";
    TUNNEL_DEVICE "tunnel-device" "Calico 3: on a tunnel device, whose routes iBGP peers have themselves: withheld.", "tortie why route {}";
    SERVICE_RANGE "service-range" "Calico 3: inside a service range that this host announces: announced.", "tortie store ls /calico/resources/v3/";
    REFLECTED_RANGE "reflected-range" "Calico 3: inside an external or load balancer range, and this host is a route reflector: announced.", "tortie store ls /calico/resources/v3/";
    EXPORT_DRAIN "drain" "The peer is drained: withheld.", "tortie bgp drain --undo";
    EXPORT_NEXT_HOP "next-hop" "No next hop is usable for this peer: withheld.", "tortie why peer {}";
    EXPORT_SIZE "size" "The route does not fit into a message: withheld.", "tortie why peer {}";
}

codes! {
    /// Reasons for not using a route of a peer.
    IMPORT_REASONS Note:
    OWN_ENDPOINT "own-endpoint" "An endpoint of this host holds that address.", "tortie why ip {}";
    INSIDE_POOL "inside-pool" "It is inside a pool, and the peer has `import_pools` false.", "tortie ipam pools";
    IMPORT_FILTER "filter" "The peer's filters reject it.", "tortie store ls /calico/bgp/v1/global/filters/";
    MARTIAN "martian" "Its prefix is multicast, loopback or link-local: no destination (RFC 4271 6.3).", "tortie bgp routes --from {}";
    NO_POLICY "no_policy" "The eBGP peer has no policy (RFC 8212).", "tortie why peer {}";
    ROUTE_LEAK "route_leak" "The roles of the two ends show that it is a route leak (RFC 9234).", "tortie why peer {}";
    AS_LOOP "as_loop" "Its AS path contains our AS (RFC 4271 9.1.2).", "tortie bgp routes --from {}";
    ORIGINATOR_LOOP "originator_loop" "It originated here and came back by a reflector (RFC 4456 8).", "tortie bgp routes --from {}";
    CLUSTER_LOOP "cluster_loop" "It came back to our own cluster (RFC 4456 8).", "tortie bgp routes --from {}";
    NEXT_HOP_SELF "next_hop_self" "Its next hop is our own address (RFC 4271 5.1.3).", "tortie bgp routes --from {}";
    NEXT_HOP_FAMILY "next_hop_family" "Its filter sets a next hop of another family (RFC 8950).", "tortie store ls /calico/bgp/v1/global/filters/";
    TOO_MANY_PATHS "too_many_paths" "The peer sends more paths for one prefix than are kept (RFC 7911).", "tortie why peer {}";
}

codes! {
    /// Reasons for not installing a route in the kernel.
    KERNEL_REASONS Note:
    UNRESOLVED "unresolved" "The kernel reaches none of its next hops.", "tortie route get {}";
    NO_TUNNEL "no-tunnel" "Its pool needs a tunnel whose device does not exist.", "tortie status";
    FOREIGN_ROUTE "foreign-route" "A route of another protocol or program has the prefix and takes precedence, or has the same metric.", "tortie why route {}";
    KERNEL_SERVICE_RANGE "service-range" "Calico 3: inside a service range, whose addresses are translated.", "tortie store ls /calico/resources/v3/";
    NO_NETWORK_REASON "no-network" "Its pool is cross-subnet, and the network of this host is not known.", "tortie node list -o wide";
    IPIP_POOL "ipip-pool" "It is in an IPIP pool, and ProgramClusterRoutes takes the routes of such pools from the store and not from BGP.", "tortie why route {}";
    VXLAN_POOL "vxlan-pool" "It is in a VXLAN pool, whose routes come from the store and not from BGP.", "tortie why route {}";
}

codes! {
    /// Host checks that `tortie doctor` and `tortie migrate check` report in addition to the problems of
    /// `status`.
    HOST_CHECKS Failure:
    CHECK_KERNEL "kernel" "The features of this kernel, each tried in a temporary network namespace.", "tortie doctor";
    CHECK_LINKS "links" "The kernel creates no veth pair, which workloads need.", "tortie doctor";
    CHECK_ROUTES "routes" "The kernel rejects a batch of routes.", "tortie doctor";
    CHECK_NEXTHOP_OBJECTS "nexthop-objects" "The kernel has no nexthop objects: gateways are in the routes themselves.", "tortie doctor";
    CHECK_IPIP "ipip" "The kernel has no IPIP tunnels.", "tortie doctor";
    CHECK_VXLAN "vxlan" "The kernel has no VXLAN devices, or a device of another program has the port of the tunnel.", "tortie doctor";
    CHECK_NFT_TABLE "nft-table" "nftables has no tables of family inet.", "tortie doctor";
    CHECK_NFT_SETS "nft-sets" "nftables has no hash or interval sets.", "tortie doctor";
    CHECK_NFT_CONCATENATION "nft-concatenation" "nftables has no sets of concatenated keys.", "tortie doctor";
    CHECK_NFT_VERDICT_MAP "nft-verdict-map" "nftables has no verdict maps.", "tortie doctor";
    CHECK_NFT_COUNTERS "nft-counters" "nftables has no rules with counter, limit and comment.", "tortie doctor";
    CHECK_NFT_CONNTRACK "nft-conntrack" "nftables has no expression for the state of connections.", "tortie doctor";
    CHECK_NFT_FIB "nft-fib" "nftables has no fib expression.", "tortie doctor";
    CHECK_NFT_LOG "nft-log" "nftables has no log groups: `tortie why drop` has no data.", "tortie doctor";
    CHECK_NFT_NAT "nft-nat" "nftables has no masquerade or destination NAT.", "tortie doctor";
    CHECK_CONNTRACK "conntrack" "The table of connections cannot be read over netlink.", "tortie doctor";
    CHECK_SOCKETS "sockets" "The options of TCP sockets that BGP uses.", "tortie doctor";
    CHECK_TCP_MD5 "tcp-md5" "The kernel has no TCP MD5 signatures (RFC 2385).", "tortie doctor";
    CHECK_TCP_AO "tcp-ao" "The kernel has no TCP-AO (RFC 5925).", "tortie doctor";
    CHECK_TTL_SECURITY "ttl-security" "The kernel has no minimum TTL for TCP sockets (RFC 5082).", "tortie doctor";
    CHECK_REAL_TIME "real-time" "BFD gets no real-time priority.", "tortie doctor";
    CHECK_CAPABILITIES "capabilities" "The Linux capabilities of the process; a missing one is `missing-capability`.", "tortie doctor";
    CHECK_PROTECTIONS "protections" "The process of the agent: capabilities, no_new_privs, core dumps, and the files that it may open.", "tortie doctor";
    CHECK_PORT "port" "A TCP port of the agent is free, or the agent's own.", "tortie doctor";
    CHECK_PORT_TAKEN "port-taken" "Another process listens on a TCP port of the agent.", "tortie doctor";
    CHECK_OTHER_DAEMON "rival" "Another daemon writes the same routes and rules.", "tortie doctor";
    CHECK_FELIX_RULES "felix-rules" "The kernel has rules of Felix, which filter in addition to ours.", "tortie doctor";
    CHECK_NETWORK_MANAGER "network-manager" "NetworkManager may take over interfaces of workloads.", "tortie doctor";
    CHECK_STORE "store" "The store answers.", "tortie doctor";
    CHECK_STORE_ABSENT "store-absent" "The SQLite store does not exist yet.", "tortie doctor";
    CHECK_GROUP "group" "The group `tortie`: its members may use the agent's socket.", "tortie doctor";
    CHECK_AGENT "agent" "The agent's verdict, or the reason why its socket is closed to this user.", "tortie doctor";
    CHECK_SOCKET "socket" "The agent's socket has the wrong type, group or permissions.", "tortie doctor";
    CHECK_MIGRATION_STATE "state" "A migration of this host was begun before.", "tortie migrate check";
    CHECK_DATA_MODEL "data-model" "The data model of the store is not the one that the agent follows.", "tortie migrate check";
    CHECK_NODE_UNKNOWN "node-unknown" "The store has no host of this name.", "tortie migrate check";
    CHECK_DUAL_STACK "dual-stack" "Hosts have addresses of both families, and the mesh has one session for both.", "tortie migrate check";
    CHECK_UNSUPPORTED "unsupported" "A key has a feature of Calico that the agent does not have.", "tortie migrate check";
    CHECK_UNKNOWN_KEYS "unknown-keys" "Keys are not part of the data model.", "tortie migrate check";
    CHECK_UNKNOWN_SETTINGS "unknown-settings" "Settings of Felix have no effect here.", "tortie migrate check";
    CHECK_DAEMONS "daemons" "The daemons of Calico that run on this host.", "tortie migrate check";
    CHECK_RESTARTING "restarting" "A graceful restart is under way.", "tortie migrate check";
    CHECK_NO_GRACEFUL_RESTART "no-graceful-restart" "A peer does not keep routes during a restart.", "tortie migrate check";
    CHECK_KERNEL_UNREAD "kernel-unread" "Routes, rules or sets of Calico cannot be read.", "tortie migrate check";
    CHECK_KERNEL_OBJECTS "kernel-objects" "The routes, rules and sets of Calico in the kernel.", "tortie migrate check";
    CHECK_FORWARD_DROP "forward-drop" "The FORWARD chain drops packets of workloads without Felix.", "tortie migrate check";
    CHECK_RULES_HIDDEN "rules-hidden" "iptables cannot list all of its tables.", "tortie migrate check";
    CHECK_FELIX_ENVIRONMENT "felix-environment" "Felix has settings in its environment, which the agent does not read.", "tortie migrate check";
    CHECK_FELIX_FILE "felix-file" "Felix has settings in its file, which the agent does not read.", "tortie migrate check";
    CHECK_NODE_ENVIRONMENT "node-environment" "calico-node has settings in its environment that differ from the store.", "tortie migrate check";
    CHECK_OTHER_DATAPLANE "other-dataplane" "Calico uses eBPF or WireGuard on this host, which the agent has no counterpart of.", "tortie migrate check";
    CHECK_TUNNEL_DEVICE "tunnel-device" "A VXLAN device of Calico differs from the one that the store asks for.", "tortie migrate check";
}

/// All lists of codes with their kinds.
pub const ALL: [(Kind, &[Code]); 7] = [
    (Kind::Problem, PROBLEMS),
    (Kind::Note, NOTES),
    (Kind::Cause, CAUSES),
    (Kind::Export, EXPORT_REASONS),
    (Kind::Import, IMPORT_REASONS),
    (Kind::Kernel, KERNEL_REASONS),
    (Kind::HostCheck, HOST_CHECKS),
];

/// Returns the code of this kind and name.
#[must_use]
pub fn find(kind: Kind, name: &str) -> Option<&'static Code> {
    let (_, list) = ALL.into_iter().find(|(k, _)| *k == kind)?;
    list.iter().find(|code| code.name == name)
}

/// Returns the position of a code of `status` in the order of severity; 0 is the most severe.
#[must_use]
pub fn weight(name: &str) -> usize {
    PROBLEMS.iter().chain(NOTES).position(|code| code.name == name).unwrap_or(usize::MAX)
}

/// Returns the severity of a problem with this code; a code of another version counts as a warning.
#[must_use]
pub fn severity(name: &str) -> Severity {
    let found = PROBLEMS.iter().chain(NOTES).chain(HOST_CHECKS).find(|code| code.name == name);
    found.map_or_else(Severity::default, |code| code.severity)
}

/// Returns the content of docs/reference/problems.md.
#[must_use]
pub fn document() -> String {
    use fmt::Write as _;
    let mut out = String::from(
        "# Problems, notes and reasons\n\n\
         `tortie status` lists problems with a stable code, the gravest first, and the command that gives the cause. \
         `NAME` below stands\nfor the subject of the line in `status`: a session, a prefix, a key, an endpoint. With `-o json` \
         the code is the field `code`.\n",
    );
    let heads = [
        ("Problems", "The verdict is `degraded`, or worse."),
        ("Notes", "The state is correct but may be unexpected; the verdict does not change."),
        ("Why a session is not up", "Conclusions of `tortie why peer`."),
        (
            "Why a route is announced or not",
            "Export gates: the first that decides is the answer; the last three withhold routes that the gates announce. Metrics and \
             `why` use the same names.",
        ),
        ("Why a route of a peer is not used", "In `tortie bgp routes --from PEER`, in metrics and in `why`."),
        ("Why a usable route is not in the kernel", "In `tortie route list`."),
        (
            "Host checks",
            "In `tortie doctor` and `tortie migrate check`, each with its fix, in addition to problems above.",
        ),
    ];
    for ((_, list), (title, about)) in ALL.iter().zip(heads) {
        let _ = write!(out, "\n## {title}\n\n{about}\n\n| code | meaning | next |\n| --- | --- | --- |\n");
        for code in *list {
            let next = code.next("NAME");
            let next = match next.split_once(", ") {
                Some((command, rest)) => format!("`{command}`, {rest}"),
                None => format!("`{next}`"),
            };
            let _ = writeln!(out, "| `{}` | {} | {next} |", code.name, code.about);
        }
    }
    out
}

#[cfg(test)]
#[path = "codes_tests.rs"]
mod tests;
