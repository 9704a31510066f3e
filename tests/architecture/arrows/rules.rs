//! The tables: which crate, which room and which library may be used by whom, and what does not hold yet.

use super::order::Order;

/// What does not hold yet: rule and key of a violation. A row that nothing needs fails the test: take it out.
pub(crate) const NOT_YET: &[(&str, &str)] = &[];

/// A crate's folder with the folder of its sources.
pub(crate) const CRATES: &[(&str, &str)] = &[
    ("net", "net/src"),
    ("metrics", "metrics/src"),
    ("config", "config/src"),
    ("store", "store/src"),
    ("engine", "engine/src"),
    ("kernel", "kernel/src"),
    ("bgp", "bgp/src"),
    ("topology", "topology/src"),
    ("tortie", "src"),
];

/// `crate | crates of the workspace that its manifest may name`: no more than stands here.
pub(crate) const CRATE_ORDER: &str = "
    net |
    metrics |
    config | net
    bgp | net
    store | config, metrics
    engine | net, config, metrics, store
    kernel | net, config, metrics, store, engine
    topology | net
    tortie | net, config, metrics, store, engine, kernel, bgp, topology
";

/// Key types of hash tables without a secret key: numbers that we give out, and that count up.
pub(crate) const OWN_NUMBERS: &[&str] =
    &["u32", "u64", "Slot", "ConnId", "PeerId", "TargetId", "(u32, TargetId)", "(Family, u32)"];

pub(crate) const ORDERS: &[Order] = &[
    // The root package: the command line on top, what several rooms exchange at the bottom.
    Order {
        folder: "src",
        rows: "
            api |
            speaker |
            foreign |
            host_checks | api, speaker
            plugins | api
            agent | api, speaker, foreign, host_checks, plugins
            cli | agent
        ",
    },
    Order {
        folder: "src/agent",
        rows: "
            logging |
            config | logging
            core | config
            time, log, policy_view, handle, journal | core
            health | handle
            controllers | health, log, time
            observe, bmp | health
            metrics | observe
            api | metrics, policy_view, time, journal
            explain | api
            process | controllers
            replay | explain
            http | explain, process
            event_loop | bmp, http, process, journal
        ",
    },
    Order {
        folder: "src/speaker",
        rows: "
            wakeup, facts, sockets, policy |
            options, faults, connections | wakeup, facts, sockets, policy
            peers | options, faults, connections
            reachability | peers
            bfd, unnumbered | reachability
            monitor, feed, abilities | bfd, unnumbered
            intent | monitor, feed, abilities
            rehearsal | intent
            view | rehearsal
            messages | view
            inbox | messages
            event_loop | inbox
        ",
    },
    // Values and helpers, netlink, the forwarding table, what endpoints and packets need, and those who drive them.
    Order {
        folder: "kernel/src",
        rows: "
            options, intent, facts, counters, sysctl, worker, arrival |
            netlink |
            fib | netlink, options, intent, facts
            endpoints | fib, counters, sysctl, arrival
            vxlan | fib
            nft | vxlan, worker
            container | endpoints, nft
            thread, inspect, maintenance | container
            namespaces | container, inspect
        ",
    },
    Order {
        folder: "engine/src",
        rows: "
            model |
            policy, ipam, writer | model
            routing | policy
        ",
    },
    // Octets and values, the tables of routes, the sessions, and the speaker that joins them; BFD, BMP and MRT stand alone.
    Order {
        folder: "bgp/src",
        rows: "
            reader, types, attr |
            wire | reader, types, attr
            role, api | wire
            rib | role, api
            adj_rib_out | rib
            ribs, session | adj_rib_out
            query | ribs, session
            speaker | query
            bfd |
            bmp | reader
            mrt | reader, api
        ",
    },
    // `mod` is the trait with its types.
    Order {
        folder: "store/src",
        rows: "
            mod |
            octets, read_file, calico_address |
            data_model | mod
            txn, schema, writer_lock, metered, fixtures, cache | data_model
            feed | txn, cache
            options | data_model
            sqlite, etcd | txn, writer_lock, options, read_file
            open_store | sqlite, etcd, schema
        ",
    },
];

/// `library | where it may be named`: crates' sources or folders and files in them.
pub(crate) const LIBRARIES: &str = "
    tortie_bgp | src/speaker, src/agent, src/cli
    tortie_topology | src/cli
    axum | src/api/page, src/agent/http, src/cli, src/plugins
    clap | src/cli, src/agent
    rusqlite | store/src/sqlite
    etcd_client | store/src/etcd
    tokio | src, store/src, engine/src
    libc | src, kernel/src, topology/src
    socket2 | src/speaker, src/cli/demo, kernel/src
    netlink_packet_route | kernel/src, topology/src
    netlink_packet_core | kernel/src, topology/src
    netlink_sys | kernel/src, topology/src
";
