//! Kurma's network plugin by the contract of its document, called like its daemon does, from its image alone.

mod host;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::calico3;
use crate::common::containers::{Kind, serve_source_address, source_seen_by};
use crate::common::fake_agent::serve_fixed_answer;
use host::Host;
use serde_json::{Value, json};

fn uuid(n: usize) -> String {
    format!("{n:08x}-fbf6-41da-a2f8-eba218597f9c")
}

fn network(name: &str) -> Value {
    json!({
        "name": name, "aci": "tortie/kurma-netplugin", "containerInterface": "eth{{num}}", "type": "tortie",
        "mtu": 1440, "ipam": {"assign_ipv6": true}
    })
}

fn applied(host: &Host) {
    serve_fixed_answer(&host.socket(), json!({"result": "applied", "reason": null, "revision": 9}));
}

fn addr(result: &Value, family: &str) -> IpAddr {
    let text = result[family]["ip"].as_str().unwrap();
    text.split('/').next().unwrap().parse().unwrap()
}

#[test]
fn the_image_alone_connects_containers_by_the_hosts_store_and_agent() {
    let Some(host) = Host::start() else { return };
    let config = network("mynet");
    host.call(&["setup"], &config).refused("/proc/1/root/var/lib/tortie/store.db");
    host.pools(&host.datastore());
    applied(&host);
    host.call(&["setup"], &config).silent();
    let (one, two) = (host.container(), host.container());
    let first = host.call(&["add", &one, &uuid(1), ""], &config);
    let result = first.json();
    let (v4, v6) = (addr(&result, "ip4"), addr(&result, "ip6"));
    assert_eq!(
        result["ip4"],
        json!({
            "ip": format!("{v4}/32"), "gateway": "169.254.1.1",
            "routes": [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}]
        })
    );
    assert_eq!(result["ip6"]["ip"], json!(format!("{v6}/128")));
    let second = host.call(&["add", &two, &uuid(2), "net7"], &config);
    println!("add took {:?} and {:?}, with the container of the plugin", first.took, second.took);
    let there = second.json();
    // Connections between the two containers.
    host.open(&two).run(|| serve_source_address(7300)).unwrap();
    let from = host.open(&one);
    for (to, source) in [(addr(&there, "ip4"), v4), (addr(&there, "ip6"), v6)] {
        let to = std::net::SocketAddr::new(to, 7300).to_string();
        assert_eq!(from.run(|| source_seen_by(Kind::Tcp, &to)).unwrap(), Ok(source), "{to}");
    }
    let value = host.tortie(
        &host.datastore(),
        &["store", "get", &format!("/calico/v1/host/h1/workload/kurma/{}/endpoint/net7", uuid(2))],
    );
    assert!(value.contains("tortie/network") && value.contains("mynet"), "{value}");
    // Setup while containers run: a restart of the daemon does not affect them.
    host.call(&["setup"], &config).silent();
    // Repeated by mistake: rejected, and the container keeps its address.
    host.call(&["add", &one, &uuid(1), "eth0"], &config).refused("exists already in the container");
    let to = std::net::SocketAddr::new(addr(&there, "ip4"), 7300).to_string();
    assert_eq!(from.run(|| source_seen_by(Kind::Tcp, &to)).unwrap(), Ok(v4));
    drop(from);
    host.call(&["del", &one, &uuid(1), "eth0"], &config).silent();
    // The process and its namespace are gone; a daemon that is unsure calls del once more.
    host.kill(&two);
    for _ in 0..2 {
        host.call(&["del", &two, &uuid(2), "net7"], &config).silent();
    }
    assert_eq!(host.traces(&host.datastore()), Vec::<String>::new());
}

#[test]
fn what_fails_leaves_nothing_and_two_networks_do_not_touch_each_other() {
    let Some(host) = Host::start() else { return };
    host.pools(&host.datastore());
    applied(&host);
    let (red, mut blue) = (network("red"), network("blue"));
    blue["runtimeConfig"] =
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
    host.call(&["add", "/proc/4194303/ns/net", &uuid(1), "eth0"], &red).refused("does not exist");
    host.call(&["add", "/proc/1/ns/net", &uuid(1), "eth0"], &red).refused("host's own");
    host.call(&["add", "/proc/1/ns/net", "no uuid", "eth0"], &red).refused("UUID");
    host.call(&["add", "/proc/1/ns/net", &uuid(1), "a-very-long-interface"], &red).refused("interface name");
    assert_eq!(host.traces(&host.datastore()), Vec::<String>::new());
    let one = host.container();
    let kept = host.call(&["add", &one, &uuid(1), "eth0"], &red).json();
    host.call(&["add", &one, &uuid(1), "eth1"], &blue).json();
    assert_eq!(host.tables().len(), 1);
    // The first generation calls del for every network, also with an interface of another network.
    host.call(&["del", &one, &uuid(1), "eth0"], &blue).silent();
    assert_eq!(host.tables(), Vec::<String>::new());
    let left = host.traces(&host.datastore());
    assert!(left.iter().any(|key| key.ends_with("/endpoint/eth0")), "{left:?}");
    assert!(!left.iter().any(|key| key.ends_with("/endpoint/eth1") || key.contains(".blue")), "{left:?}");
    // At the time of del, the path may belong to another container.
    host.call(&["del", "/proc/1/ns/net", &uuid(1), "eth0"], &red).silent();
    assert_eq!(host.traces(&host.datastore()), Vec::<String>::new());
    let again = host.call(&["add", &one, &uuid(2), "eth0"], &red).json();
    assert_ne!(addr(&again, "ip4"), addr(&kept, "ip4"), "the free list is a queue");
    host.call(&["del", &one, &uuid(2), "eth0"], &red).silent();
    // A prefix that the agent does not manage, and one that it does.
    let mut other = red.clone();
    other["interface_prefix"] = json!("kur");
    host.call(&["setup"], &other).refused("cali,kur");
    host.tortie(&host.datastore(), &["store", "put", "/calico/v1/config/InterfacePrefix", "cali,kur"]);
    host.call(&["setup"], &other).silent();
    host.call(&["add", &one, &uuid(3), "eth0"], &other).json();
    assert!(host.sh("ip -o link").contains("kur00000003fbf"));
    host.call(&["del", &one, &uuid(3), "eth0"], &other).silent();
    host.tortie(&host.datastore(), &["store", "put", "/calico/v1/Ready", "false"]);
    host.call(&["setup"], &red).refused("try again later");
    host.call(&["add", &one, &uuid(4), "eth0"], &red).refused("try again later");
    assert_eq!(host.traces(&host.datastore()), Vec::<String>::new());
}

#[test]
fn setup_repairs_what_was_left_by_containers_and_calls_that_were_killed() {
    let Some(host) = Host::start() else { return };
    host.pools(&host.datastore());
    applied(&host);
    let config = network("mynet");
    let (gone, lives) = (host.container(), host.container());
    host.call(&["add", &gone, &uuid(1), "eth0"], &config).json();
    host.call(&["add", &lives, &uuid(2), "eth0"], &config).json();
    // The daemon was down while a container ended; one call was killed after its interface, another after its
    // address.
    host.kill(&gone);
    host.sh("while ip link show cali00000001fbf >/dev/null 2>&1; do sleep 0.05; done");
    host.sh("ip link add califfffffffff type veth peer name other; \
         ip link set califfffffffff alias 'tortie kurma/killed/eth0'; \
         ip link add calieeeeeeeeee type veth peer name another; \
         ip link set calieeeeeeeeee alias 'tortie cni/of-another-door/eth0'");
    host.call(&["setup"], &config).silent();
    let left = host.traces(&host.datastore());
    let kurma: Vec<_> =
        left.iter().filter(|line| line.contains("killed") || line.contains(&uuid(1))).collect();
    assert!(kurma.is_empty(), "{left:?}");
    assert!(left.iter().any(|line| line.contains("of-another-door")), "{left:?}");
    assert!(left.iter().any(|line| line.contains(&uuid(2))), "{left:?}");
    host.sh("ip link del calieeeeeeeeee");
    host.call(&["del", &lives, &uuid(2), "eth0"], &config).silent();
    assert_eq!(host.traces(&host.datastore()), Vec::<String>::new());
}

/// The life of two containers on a Calico 3 store: setup, add, repair of a killed one, freeze, del.
#[test]
fn containers_come_and_go_in_a_calico_3_store() {
    let Some(host) = Host::start() else { return };
    let datastore = host.datastore();
    host.objects(&datastore);
    applied(&host);
    let mut config = network("My_Net");
    host.call(&["setup"], &config).silent();
    let (one, two) = (host.container(), host.container());
    let first = host.call(&["add", &one, &uuid(1), "eth0"], &config).json();
    host.call(&["add", &two, &uuid(2), "eth0"], &config).json();
    let name = format!("default/h1-kurma-{}-eth0", uuid(1).replace('-', "--"));
    let value = host.tortie(&datastore, &["store", "get", &calico3::key("WorkloadEndpoint", &name)]);
    for part in [format!("{}/32", addr(&first, "ip4")), "my-net-".to_owned(), uuid(1)] {
        assert!(value.contains(&part), "{part}: {value}");
    }
    // A prefix that the agent does not manage, and one that it does.
    let mut other = config.clone();
    other["interface_prefix"] = json!("kur");
    host.call(&["setup"], &other)
        .refused("`interfacePrefix` of the FelixConfiguration `default` to `cali,kur`");
    let settings = calico3::object("FelixConfiguration", "default", &json!({"interfacePrefix": "cali,kur"}));
    let key = calico3::key("FelixConfiguration", "default");
    host.tortie(&datastore, &["store", "put", "--raw", &key, &settings]);
    host.call(&["setup"], &other).silent();
    // A container ends while no daemon runs.
    host.kill(&two);
    host.sh("while ip link show cali00000002fbf >/dev/null 2>&1; do sleep 0.05; done");
    host.call(&["setup"], &config).silent();
    assert!(!host.traces(&datastore).iter().any(|key| key.contains("00000002")));
    let (key, frozen) = calico3::cluster_information(false);
    host.tortie(&datastore, &["store", "put", "--raw", &key, &frozen]);
    let (added, removed) = (uuid(3), uuid(1));
    let calls: [&[&str]; 3] = [&["setup"], &["add", &one, &added, "eth1"], &["del", &one, &removed, "eth0"]];
    for call in calls {
        host.call(call, &config).refused("try again later");
    }
    host.tortie(&datastore, &["store", "put", "--raw", &key, &calico3::cluster_information(true).1]);
    config["ipam"]["ipv4_pools"] = json!(["10-65-0-0-16"]);
    host.call(&["del", &one, &uuid(1), "eth0"], &config).silent();
    assert_eq!(host.traces(&datastore), Vec::<String>::new());
}

#[test]
fn the_second_generation_has_its_volume_and_a_setup_that_stays() {
    let Some(host) = Host::start() else { return };
    host.pools(&host.datastore());
    let mut config = network("mynet");
    // Neither process ids nor the agent's socket are shared.
    config["agentAbsent"] = json!("continue");
    let mut waits = host.begin(true, &["setup-wait"], &config);
    let one = host.kept_container(&uuid(1));
    let began = Instant::now();
    let added = Host::end(host.begin(true, &["add", &one, &uuid(1), "eth0"], &config), began);
    assert!(added.json()["ip4"]["ip"].is_string());
    assert!(
        host.open(&one)
            .run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))
            .unwrap()
            .unwrap()
            .contains("eth0")
    );
    let gone = Host::end(host.begin(true, &["del", &one, &uuid(1), "eth0"], &config), began);
    gone.silent();
    assert_eq!(host.traces(&host.datastore()), Vec::<String>::new());
    assert!(waits.try_wait().unwrap().is_none(), "the container of the plugin lives as long as setup-wait");
    waits.kill().unwrap();
    waits.wait().unwrap();
}

/// The configured store; eight concurrent calls.
#[test]
fn concurrent_calls_on_one_etcd_get_an_address_each() {
    let Some(host) = Host::start() else { return };
    let peers = std::env::var_os("TORTIE_PEERS").map(std::path::PathBuf::from).unwrap_or_default();
    let etcd = [peers.join("etcd"), "/usr/bin/etcd".into()].into_iter().find(|path| path.exists());
    let Some(etcd) = etcd else {
        assert!(std::env::var_os("CI").is_none(), "no etcd in CI");
        return eprintln!("skipped: no etcd");
    };
    let url = "http://127.0.0.1:2379";
    let mut etcd = Command::new("nsenter")
        .args(["-t", &host.pid.to_string(), "-n"])
        .arg(etcd)
        .args(["--listen-client-urls", url, "--advertise-client-urls", url, "--data-dir"])
        .arg(host.dir.path().join("etcd"))
        .args(["--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let datastore = "etcd://127.0.0.1:2379";
    let begin = Instant::now();
    while !host.sh("ss -ltn").contains("127.0.0.1:2379") {
        assert!(begin.elapsed() < Duration::from_secs(60), "etcd does not listen");
        std::thread::sleep(Duration::from_millis(50));
    }
    host.pools(datastore);
    applied(&host);
    let mut config = network("mynet");
    config["datastore"] = json!(datastore);
    host.call(&["setup"], &config).silent();
    let containers: Vec<String> = (0..8).map(|_| host.container()).collect();
    let began = Instant::now();
    let at_once = |verb: &str| {
        let calls: Vec<_> = containers
            .iter()
            .enumerate()
            .map(|(n, path)| host.begin(false, &[verb, path, &uuid(n), "eth0"], &config))
            .collect();
        calls.into_iter().map(|call| Host::end(call, began)).collect::<Vec<_>>()
    };
    let results: Vec<Value> = at_once("add").iter().map(host::Ended::json).collect();
    println!("eight at once: {:?}", began.elapsed());
    let all: BTreeSet<IpAddr> = results.iter().flat_map(|r| [addr(r, "ip4"), addr(r, "ip6")]).collect();
    assert_eq!(all.len(), 16);
    at_once("del").iter().for_each(host::Ended::silent);
    assert_eq!(host.traces(datastore), Vec::<String>::new());
    etcd.kill().unwrap();
    etcd.wait().unwrap();
}

#[test]
fn a_missing_agent_fails_after_ten_seconds_and_nothing_stays() {
    let Some(host) = Host::start() else { return };
    host.pools(&host.datastore());
    let one = host.container();
    let ended = host.call(&["add", &one, &uuid(1), "eth0"], &network("mynet"));
    ended.refused("no agent runs here: /run/tortie/tortie.sock");
    // One that is waited for takes 45 s.
    assert!((9..30).contains(&ended.took.as_secs()), "{:?}", ended.took);
    assert_eq!(host.traces(&host.datastore()), Vec::<String>::new());
}

#[test]
#[ignore = "takes 45 seconds"]
fn long_an_agent_that_is_waited_for_ends_before_the_daemons_limit() {
    let Some(host) = Host::start() else { return };
    host.pools(&host.datastore());
    let one = host.container();
    let mut config = network("mynet");
    config["agentAbsent"] = json!("wait");
    let ended = host.call(&["add", &one, &uuid(1), "eth0"], &config);
    assert!(!ended.ok && ended.took < Duration::from_secs(56), "{ended:?}");
    assert_eq!(host.traces(&host.datastore()), Vec::<String>::new());
}
