//! Invalid input of every kind: the protocol's error, no allocation, no leftovers.

use serde_json::{Value, json};

use crate::cni::rig::{Container, Host};

#[test]
fn wrong_input_gives_an_error_object_and_leaves_nothing() {
    Host::without_agent(|host| {
        host.pool("10.66.0.0/26", json!({"cidr": "10.66.0.0/26", "disabled": true}));
        let before = (host.keys(), host.traces());
        let container = Container::new();
        let with = |more: Value| host.config(more).to_string().into_bytes();
        let runtime = |area: &str, value: Value| with(json!({"runtimeConfig": {area: value}}));
        let whole = with(json!({}));
        let truncated = whole[..whole.len() / 2].to_vec();
        let huge = with(json!({"args": {"x": "y".repeat(1 << 20)}}));
        let cases: Vec<(&str, Vec<u8>, u64, &str)> = vec![
            ("truncated", truncated, 6, "JSON"),
            ("empty", Vec::new(), 6, "stdin"),
            ("no JSON", b"hello".to_vec(), 6, "JSON"),
            ("a list", b"[]".to_vec(), 6, "object"),
            ("1 MB", huge, 6, "bytes"),
            ("no name", b"{\"cniVersion\": \"1.0.0\"}".to_vec(), 7, "name"),
            ("version", with(json!({"cniVersion": "9.0.0"})), 1, "9.0.0"),
            ("type of a field", with(json!({"mtu": "big"})), 7, "mtu"),
            ("unknown field", with(json!({"isGateway": true})), 2, "isGateway"),
            ("unknown area", runtime("aliases", json!({"net": ["a"]})), 2, "aliases"),
            ("port", runtime("portMappings", json!([{"hostPort": 99999, "containerPort": 1}])), 7, "99999"),
            ("rate", runtime("bandwidth", json!({"ingressRate": "fast"})), 7, "fast"),
            ("mac", runtime("mac", json!("zz")), 7, "zz"),
            ("unknown pool", with(json!({"ipam": {"ipv4_pools": ["10.99.0.0/16"]}})), 7, "10.99.0.0/16"),
            ("disabled pool", with(json!({"ipam": {"ipv4_pools": ["10.66.0.0/26"]}})), 7, "10.66.0.0/26"),
            ("address outside", runtime("ips", json!(["192.0.2.7"])), 7, "192.0.2.7"),
            ("range outside", runtime("ipRanges", json!([[{"subnet": "192.0.2.0/24"}]])), 7, "192.0.2.0/24"),
            ("one of two outside", runtime("ips", json!(["10.65.0.9", "fd01::9"])), 7, "fd01::9"),
            ("no such IPAM plugin", with(json!({"ipam": {"type": "no-such-plugin"}})), 7, "no-such-plugin"),
            ("store", with(json!({"datastore": "sqlite:/nonexistent/x.db"})), 5, "/nonexistent/x.db"),
            ("store URL", with(json!({"datastore": "x"})), 7, "datastore"),
            ("mtu of IPv6", with(json!({"mtu": 1000, "ipam": {"assign_ipv6": "true"}})), 102, "1000"),
            (
                "prevResult",
                with(json!({"prevResult": {"ips": [{"address": "x"}]}})),
                7,
                "prevResult.ips[0].address",
            ),
            (
                "interface that is not there",
                with(
                    json!({"prevResult": {"interfaces": [{"name": "nosuch0"}], "ips": [{"address": "10.65.0.9/24"}]}}),
                ),
                7,
                "nosuch0",
            ),
        ];
        let (id, netns) = (container.id(), container.netns());
        let env = |command: &'static str| {
            [
                ("CNI_COMMAND", command.to_owned()),
                ("CNI_CONTAINERID", id.clone()),
                ("CNI_NETNS", netns.clone()),
                ("CNI_IFNAME", "eth0".to_owned()),
            ]
        };
        let call = |env: &[(&str, String)], input: &[u8]| {
            let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
            host.call("tortie-cni", &env, input)
        };
        for (what, input, code, part) in &cases {
            let answer = call(&env("ADD"), input);
            let (found, text) = answer.refused();
            assert!(found == *code && text.contains(part), "{what}: {found} {text}");
            assert_eq!(answer.stderr, "", "{what}");
        }
        for (name, value) in [
            ("CNI_COMMAND", "ATTACH"),
            ("CNI_CONTAINERID", "../../x"),
            ("CNI_CONTAINERID", ""),
            ("CNI_NETNS", ""),
            ("CNI_NETNS", "/run/netns/no-such-namespace"),
            ("CNI_NETNS", "/etc/passwd"),
            ("CNI_NETNS", "/proc/self/ns/net"),
            ("CNI_IFNAME", "a/b"),
            ("CNI_IFNAME", "far-too-long-name"),
            ("CNI_ARGS", "FOO=BAR"),
            ("CNI_ARGS", "IP=10.65.0.300"),
        ] {
            let mut env = env("ADD").to_vec();
            env.retain(|(other, _)| *other != name);
            env.push((name, value.to_owned()));
            let answer = call(&env, &whole);
            let (code, text) = answer.refused();
            assert!(code == 4 && text.contains(name), "{name}={value}: {code} {text}");
        }
        // An interface with that name exists.
        container.ip("link add eth0 type veth peer name other0");
        let answer = call(&env("ADD"), &whole);
        assert!(answer.refused().1.contains("eth0"), "{answer:?}");
        container.ip("link del eth0");
        // Commands of later protocol versions.
        for command in ["CHECK", "GC", "STATUS"] {
            let old = with(json!({"cniVersion": "0.3.1"}));
            assert_eq!(call(&env(command), &old).refused().0, 4, "{command}");
        }
        // The host may keep a block; everything else is unchanged.
        let owned = |key: &str| key.contains("/ipam/v2/host/") || key.contains("/ipam/v2/assignment/");
        let mut after = host.keys();
        after.retain(|key, _| !owned(key));
        assert_eq!((after, host.traces()), before);
        // Input that ADD rejects is accepted by DEL: there is nothing to remove.
        for (what, input, ..) in cases
            .iter()
            .skip(7)
            .filter(|(what, ..)| !matches!(*what, "store" | "store URL" | "no such IPAM plugin"))
        {
            let answer = call(&env("DEL"), input);
            assert!(answer.ok && answer.stdout.is_empty(), "{what}: {answer:?}");
        }
    });
}

#[test]
fn a_full_pool_gives_nothing_more_and_no_agent_undoes_everything() {
    Host::without_agent(|host| {
        host.pool("10.67.0.0/30", json!({"cidr": "10.67.0.0/30", "blockSize": 30}));
        let config = host.config(json!({"ipam": {"ipv4_pools": ["10.67.0.0/30"]}}));
        let containers = [(); 5].map(|()| Container::new());
        let [first @ .., last] = &containers;
        for container in first {
            host.add(container, &config);
        }
        let before = host.traces();
        let answer = host.command("tortie-cni", "ADD", last, &config, "");
        let (code, text) = answer.refused();
        assert!(code == 100 && text.contains("10.67.0.0/30"), "{code} {text}");
        assert_eq!(host.traces(), before);
        for container in &containers {
            host.del(container, &config);
        }
        let wait = host.config(json!({"agentAbsent": "error"}));
        let answer = host.command("tortie-cni", "ADD", last, &wait, "");
        let (code, text) = answer.refused();
        assert!(code == 11 && text.contains("tortie.sock"), "{code} {text}");
        assert_eq!(host.traces(), Vec::<String>::new());
        assert!(!last.ip("link").contains("eth0"));
    });
}
