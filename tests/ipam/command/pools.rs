//! Pools, blocks, addresses: allocations, rejections and their messages.

use super::{assign, done, endpoint, fails, json, put, store};

#[test]
fn a_pool_lives_and_dies() {
    let store = store(&[]);
    fails(&store, &["ipam", "assign", "--node", "h1"], 1, &["pool", "tortie ipam pool create"]);
    assert!(done(&store.run(&["ipam", "pools"])).contains("tortie ipam pool create"));
    done(&store.run(&["ipam", "pool", "create", "10.65.0.0/16", "--ipip", "cross-subnet", "--masquerade"]));
    done(&store.run(&["ipam", "pool", "create", "fd65::/64", "--block-size", "120"]));
    let export = store.export();
    let value = &export["/calico/v1/ipam/v4/pool/10.65.0.0-16"];
    let value: serde_json::Value = serde_json::from_str(value).unwrap();
    assert_eq!((&value["ipip"], &value["ipip_mode"]), (&"tunl0".into(), &"cross-subnet".into()));
    assert_eq!(
        (&value["masquerade"], &value["ipam"], &value["disabled"]),
        (&true.into(), &true.into(), &false.into())
    );
    // As calicoctl does for the first pool with IPIP.
    assert_eq!(export["/calico/v1/config/IpInIpEnabled"], "true");
    fails(&store, &["ipam", "pool", "create", "10.65.0.0/16"], 1, &["exists already"]);
    fails(&store, &["ipam", "pool", "create", "10.65.4.0/24"], 2, &["overlaps", "10.65.0.0/16"]);
    fails(&store, &["ipam", "pool", "create", "169.254.0.0/20"], 2, &["169.254.0.0/16"]);
    fails(&store, &["ipam", "pool", "create", "10.66.0.0/28"], 2, &["block"]);
    fails(&store, &["ipam", "pool", "create", "fd66::/64", "--ipip", "always"], 2, &["IPIP"]);
    fails(&store, &["ipam", "pool", "create", "10.66.0.0/16", "--block-size", "8"], 2, &["lock"]);
    let addr = assign(&store, &["--node", "h1", "--handle", "a"]).remove(0);
    let pools = json(&store.run(&["ipam", "pools", "-o", "json"]));
    assert_eq!(pools[0]["pool"], "10.65.0.0/16");
    assert_eq!((&pools[0]["used"], &pools[0]["addresses"]), (&1.into(), &65_536.into()));
    assert_eq!((&pools[1]["pool"], &pools[1]["blockSize"]), (&"fd65::/64".into(), &120.into()));
    assert!(pools[1]["addresses"].is_null(), "2^64 is no JSON number");
    assert!(done(&store.run(&["ipam", "pools"])).contains("2^64"));
    // A pool in use cannot be deleted. A disabled one allocates nothing, and its addresses are still known.
    fails(&store, &["ipam", "pool", "delete", "10.65.0.0/16"], 7, &["1 address of", "tortie ipam blocks"]);
    done(&store.run(&["ipam", "pool", "disable", "10.65.0.0/16"]));
    fails(&store, &["ipam", "assign", "--node", "h2", "--num4", "1"], 1, &["pool"]);
    assert!(done(&store.run(&["ipam", "show", &addr])).contains("allocated"));
    done(&store.run(&["ipam", "pool", "enable", "10.65.0.0/16"]));
    assign(&store, &["--node", "h2", "--handle", "b"]);
    done(&store.run(&["ipam", "release", "--handle", "a"]));
    done(&store.run(&["ipam", "release", "--handle", "b"]));
    let gone = done(&store.run(&["ipam", "pool", "delete", "10.65.0.0/16"]));
    assert!(gone.contains("2 empty blocks"), "{gone}");
    let left = store.export();
    assert!(left.keys().all(|key| !key.contains("10.65")), "{left:#?}");
    fails(&store, &["ipam", "pool", "delete", "10.65.0.0/16"], 1, &["tortie ipam pools"]);
}

#[test]
fn addresses_are_given_and_taken_back() {
    let store = store(&["10.65.0.0/16", "10.66.0.0/24", "fd65::/64"]);
    assert_eq!(assign(&store, &["--node", "h1"]).len(), 1, "one IPv4 address without any number");
    let both = assign(
        &store,
        &["--node", "h1", "--num4", "3", "--num6", "2", "--handle", "c1", "--attr", "pod=web"],
    );
    assert_eq!(both.iter().filter(|addr| addr.contains(':')).count(), 2);
    assert_eq!(both.len(), 5);
    let [named] = &assign(&store, &["--node", "h1", "--ip", "10.65.9.9", "--handle", "c2"])[..] else {
        panic!()
    };
    assert_eq!(named, "10.65.9.9");
    let only = assign(&store, &["--node", "h1", "--num4", "2", "--pool", "10.66.0.0/24"]);
    assert!(only.iter().all(|addr| addr.starts_with("10.66.0.")), "{only:?}");
    let known = json(&store.run(&["ipam", "assign", "--node", "h1", "--handle", "c3", "-o", "json"]));
    assert!(
        known[0]["address"].as_str().unwrap().ends_with("/32") && known[0]["pool"] == "10.65.0.0/16",
        "{known}"
    );
    let shown = json(&store.run(&["ipam", "show", &both[0], "-o", "json"]));
    assert_eq!((&shown["handle"], &shown["allocated"]), (&"c1".into(), &true.into()));
    assert_eq!((&shown["attributes"]["pod"], &shown["attributes"]["node"]), (&"web".into(), &"h1".into()));
    assert!(shown["attributes"]["timestamp"].as_str().unwrap().ends_with('Z'), "{shown}");
    let before = store.export();
    for (words, code, named) in [
        (&["--ip", "10.65.9.9"][..], 1, &["10.65.9.9", "c2"][..]),
        (&["--ip", "192.0.2.1"], 2, &["192.0.2.1", "10.65.0.0/16"]),
        (&["--num4", "1", "--pool", "10.99.0.0/16"], 2, &["10.99.0.0/16", "10.65.0.0/16"]),
        (&["--num6", "1", "--pool", "10.65.0.0/16"], 2, &["--pool", "v6"]),
        (&["--ip", "10.65.7.7", "--pool", "10.66.0.0/24"], 2, &["10.65.7.7", "--pool"]),
        (&["--num4", "300", "--pool", "10.66.0.0/24"], 1, &["300", "10.66.0.0/24"]),
        (&["--num4", "0"], 2, &["--num4"]),
        (&["--attr", "pod"], 2, &["NAME=VALUE"]),
        (&["--num4", "many"], 2, &["--num4"]),
        (&["--ip", "10.65.0"], 2, &["--ip"]),
    ] {
        let all = [&["ipam", "assign", "--node", "h1"], words].concat();
        let output = fails(&store, &all, code, named);
        assert!(output.stdout.is_empty(), "{words:?}: {output:?}");
    }
    assert_eq!(store.export(), before, "nothing is left of what was refused");
    // All addresses of a handle, or single addresses; an unallocated one is reported as not found.
    let freed = done(&store.run(&["ipam", "release", "--handle", "c1"]));
    assert_eq!(freed.lines().count(), 5, "{freed}");
    fails(&store, &["ipam", "release", "--handle", "c1"], 1, &["c1", "nothing"]);
    done(&store.run(&["ipam", "release", "--ip", &only[0], "--ip", "10.65.9.9"]));
    let half = fails(
        &store,
        &["ipam", "release", "--ip", &only[1], "--ip", "10.65.9.9"],
        1,
        &["not allocated: 10.65.9.9"],
    );
    assert_eq!(String::from_utf8_lossy(&half.stdout), format!("{} released\n", only[1]));
    fails(&store, &["ipam", "release"], 2, &["--ip", "--handle"]);
    fails(&store, &["ipam", "release", "--ip", "10.65.9.9", "--handle", "x"], 2, &["--handle"]);
    fails(&store, &["ipam", "show", "10.65.9.9"], 1, &[]);
}

#[test]
fn frozen_means_later() {
    let store = store(&["10.65.0.0/16"]);
    done(&store.run(&["store", "put", "/calico/v1/Ready", "false"]));
    let before = store.export();
    fails(&store, &["ipam", "assign", "--node", "h1"], 1, &["Ready", "try again later"]);
    assert_eq!(store.export(), before);
}

#[test]
fn nothing_is_made_where_no_store_is() {
    let none = crate::common::command::Store::none();
    for words in
        [&["ipam", "pools"][..], &["ipam", "assign", "--node", "h1"], &["ipam", "check"], &["node", "list"]]
    {
        fails(&none, words, 2, &["no store at", "--datastore"]);
    }
    assert_eq!(std::fs::read_dir(none.dir.path()).unwrap().count(), 0);
}

#[test]
fn blocks_are_claimed_shown_and_given_up() {
    let store = store(&["10.65.0.0/24"]);
    let claimed = json(&store.run(&["ipam", "claim", "10.65.0.64/26", "--node", "h1", "-o", "json"]));
    assert_eq!((&claimed[0]["block"], &claimed[0]["result"]), (&"10.65.0.64/26".into(), &"claimed".into()));
    fails(&store, &["ipam", "claim", "10.65.0.64/26", "--node", "h2"], 1, &["h1", "unclaim"]);
    fails(&store, &["ipam", "claim", "192.0.2.0/26", "--node", "h2"], 2, &["192.0.2.0", "10.65.0.0/24"]);
    let given = assign(&store, &["--node", "h1", "--num4", "40", "--handle", "many"]);
    assert!(given.iter().all(|addr| {
        let last: u8 = addr.rsplit('.').next().unwrap().parse().unwrap();
        (64..128).contains(&last)
    }));
    assign(&store, &["--node", "h2", "--num4", "1"]);
    put(&store, &endpoint("h1", "web", &given[0]));
    let rows = json(&store.run(&["ipam", "blocks", "-o", "json"]));
    assert_eq!(
        (&rows[0]["block"], &rows[0]["used"], &rows[0]["owner"]),
        (&"10.65.0.64/26".into(), &40.into(), &"h1".into())
    );
    assert_eq!((&rows[0]["state"], &rows[1]["used"]), (&"confirmed".into(), &1.into()), "fullest first");
    let own = json(&store.run(&["ipam", "blocks", "--owner", "h2", "-o", "json"]));
    assert_eq!(own.as_array().unwrap().len(), 1);
    fails(&store, &["ipam", "blocks", "--pool", "10.99.0.0/16"], 1, &["tortie ipam pools"]);
    let block = done(&store.run(&["ipam", "show", "10.65.0.64/26"]));
    assert!(block.contains("of h1 (confirmed)") && block.contains("40 used, 24 free"), "{block}");
    let line = block.lines().find(|line| line.starts_with(&format!("{} ", given[0]))).unwrap();
    assert!(line.contains("many") && line.contains("cni/web/eth0"), "{line}");
    fails(&store, &["ipam", "show", "10.65.9.0/26"], 1, &["tortie ipam blocks"]);
    // A block in use loses its affinity and stays; an empty one is deleted.
    fails(&store, &["ipam", "unclaim", "10.65.0.64/26", "--node", "h2"], 1, &["h2"]);
    let kept =
        json(&store.run(&["ipam", "unclaim", "10.65.0.64/26", "--node", "h1", "--force", "-o", "json"]));
    assert!(kept[0]["result"].as_str().unwrap().contains("in use"), "{kept}");
    done(&store.run(&["ipam", "release", "--handle", "many", "--force"]));
    assert!(store.export().keys().all(|key| !key.contains("10.65.0.64")), "nobody's and empty: gone");
}

#[test]
fn why_ip_reports_what_ipam_show_reports() {
    let store = store(&["10.65.0.0/24"]);
    let addr = assign(&store, &["--node", "h1", "--handle", "net.c1", "--attr", "namespace=shop"]).remove(0);
    put(&store, &endpoint("h1", "web", &addr));
    let text = done(&store.run(&["why", "ip", &addr]));
    for word in [
        "allocated",
        "10.65.0.0/24",
        "of h1",
        "net.c1",
        "shop",
        "cni/web/eth0 on h1",
        "routes: no agent runs here",
    ] {
        assert!(text.contains(word), "no {word:?}: {text}");
    }
    let [why, show] = ["why", "ipam"].map(|family| {
        let word = if family == "why" { "ip" } else { "show" };
        json(&store.run(&[family, word, &addr, "-o", "json"]))
    });
    assert_eq!(why["endpoints"], show["endpoints"]);
    fails(&store, &["why", "ip", "10.65.0"], 2, &["10.65.0"]);
    let free = fails(&store, &["why", "ip", "10.65.0.255"], 1, &[]);
    assert!(String::from_utf8_lossy(&free.stdout).contains("free"), "{free:?}");
    let outside = fails(&store, &["why", "ip", "192.0.2.1"], 1, &[]);
    assert!(String::from_utf8_lossy(&outside.stdout).contains("in no pool"), "{outside:?}");
}

/// Commands that release the address of an endpoint, or forget its allocation: the next container would get
/// the same address.
#[test]
fn what_endpoints_have_is_freed_with_force_only() {
    let new = || {
        let store = store(&["10.65.0.0/16"]);
        let addr = assign(&store, &["--node", "h1", "--handle", "net.c1"]).remove(0);
        put(&store, &endpoint("h1", "c1", &addr));
        let block =
            json(&store.run(&["ipam", "blocks", "-o", "json"]))[0]["block"].as_str().unwrap().to_owned();
        (store, addr, block)
    };
    let commands = |addr: &str, block: &str| -> Vec<Vec<String>> {
        let key = block.replace('/', "-");
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        vec![
            own(&["ipam", "release", "--ip", addr]),
            own(&["ipam", "release", "--handle", "net.c1"]),
            own(&["ipam", "unclaim", block, "--node", "h1"]),
            own(&["ipam", "unclaim", "10.65.0.0/16", "--node", "h1"]),
            own(&["store", "rm", &format!("/calico/ipam/v2/assignment/ipv4/block/{key}")]),
            own(&["store", "rm", &format!("/calico/ipam/v2/host/h1/ipv4/block/{key}")]),
            own(&["store", "rm", "/calico/ipam/v2/handle/net.c1"]),
            own(&["store", "rm", "/calico/v1/ipam/v4/pool/10.65.0.0-16"]),
            own(&["store", "rm", "--prefix", "/calico/ipam/v2/"]),
        ]
    };
    let (store, addr, block) = new();
    let before = store.export();
    for words in commands(&addr, &block) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        fails(&store, &words, 7, &[&addr, "cni/c1/eth0", "--force"]);
        assert_eq!(store.export(), before, "{words:?}");
    }
    for at in 0..commands(&addr, &block).len() {
        let (store, addr, block) = new();
        let words = commands(&addr, &block).remove(at);
        let words: Vec<&str> = words.iter().map(String::as_str).chain(["--force"]).collect();
        done(&store.run(&words));
        assert_ne!(store.export(), before);
    }
    // An endpoint deleted before, or together with its address, is no obstacle.
    done(&store.run(&["store", "rm", "/calico/v1/host/h1/workload/cni/c1/endpoint/eth0"]));
    done(&store.run(&["ipam", "release", "--handle", "net.c1"]));
    let (store, _, _) = new();
    done(&store.run(&["store", "rm", "--prefix", "/calico/"]));
}
