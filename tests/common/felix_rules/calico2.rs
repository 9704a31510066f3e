//! The rules that Felix 2.6 writes for a host with one workload (rules/*.go of projectcalico/felix 2.6.8),
//! for `iptables-restore --noflush`. Each has the hash by which Felix recognises it.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha224};

/// Properties of a host that determine its rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Felix<'a> {
    pub(crate) v4: bool,
    /// `IpInIpEnabled` is set, and the tunnel has an address.
    pub(crate) ipip: bool,
    /// A pool masquerades.
    pub(crate) masquerade: bool,
    /// Interface of the workload.
    pub(crate) interface: &'a str,
    /// Its only profile, which allows everything.
    pub(crate) profile: &'a str,
    /// The only policy that selects it, with the matches of its two chains; both allow.
    pub(crate) policy: Option<(&'a str, [&'a str; 2])>,
}

type Chain = (String, Vec<String>);

/// Felix's packet marks: accepted by a policy or profile, passed by a policy, from a workload.
const ACCEPT: &str = "0x1000000";
const PASS: &str = "0x2000000";
const WORKLOAD: &str = "0x4000000";
const ALL: &str = "0xf000000";
const FAILSAFE_IN: [(&str, u16); 2] = [("tcp", 22), ("udp", 68)];
const FAILSAFE_OUT: [(&str, u16); 6] =
    [("tcp", 2379), ("tcp", 2380), ("tcp", 4001), ("tcp", 7001), ("udp", 53), ("udp", 67)];

/// Computes Felix's rule identifiers: each depends on the chain, the rules before it and the rule itself
/// (`RuleHashes` of iptables/rules.go).
pub(crate) fn hashes(chain: &str, rules: &[String]) -> Vec<String> {
    let mut hash = Sha224::digest(chain);
    let each = rules.iter().map(|rule| {
        let text = format!("-A {chain} HASH {rule}");
        hash = Sha224::digest([hash.as_slice(), text.as_bytes()].concat());
        BASE64_URL_SAFE_NO_PAD.encode(hash)[..16].to_owned()
    });
    each.collect()
}

fn set(mark: &str) -> String {
    format!("--jump MARK --set-mark {mark}/{mark}")
}

fn clear(mark: &str) -> String {
    format!("--jump MARK --set-mark 0/{mark}")
}

fn is(mark: &str, then: &str) -> String {
    format!("-m mark --mark {mark}/{mark} {then}")
}

fn is_not(mark: &str, then: &str) -> String {
    format!("-m mark --mark 0/{mark} {then}")
}

fn said(comment: &str, rule: &str) -> String {
    format!("-m comment --comment \"{comment}\" {rule}")
}

fn chain<const N: usize>(name: &str, rules: [&str; N]) -> Chain {
    (name.to_owned(), rules.map(str::to_owned).to_vec())
}

/// Returns the rules for failsafe ports. `way`: `destination`, or `source` for replies.
fn ports(list: &[(&str, u16)], way: &str) -> Vec<String> {
    let rule = |(protocol, port): &(&str, u16)| {
        format!("-p {protocol} -m multiport --{way}-ports {port} --jump ACCEPT")
    };
    list.iter().map(rule).collect()
}

impl Felix<'_> {
    /// Returns all tables.
    pub(crate) fn rules(&self) -> String {
        let mut out = String::new();
        for (name, hooks, chains) in [
            ("raw", &["PREROUTING", "OUTPUT"][..], self.raw()),
            ("mangle", &["PREROUTING"], mangle()),
            ("nat", &["PREROUTING", "POSTROUTING", "OUTPUT"], self.nat()),
            // Sets first, then policies, then endpoints.
            ("filter", &["INPUT", "FORWARD", "OUTPUT"], self.filter()),
        ] {
            let _ = writeln!(out, "*{name}");
            for (chain, _) in &chains {
                let _ = writeln!(out, ":{chain} - [0:0]");
            }
            for hook in hooks {
                append(&mut out, "-I", hook, &[format!("--jump cali-{hook}")]);
            }
            for (chain, rules) in &chains {
                append(&mut out, "-A", chain, rules);
            }
            out.push_str("COMMIT\n");
        }
        out
    }

    fn raw(&self) -> Vec<Chain> {
        let mut prerouting = vec![clear(ALL), format!("--in-interface cali+ {}", set(WORKLOAD))];
        if !self.v4 {
            prerouting.push(is(WORKLOAD, "-m rpfilter --invert --jump DROP"));
        }
        prerouting.push(is_not(WORKLOAD, "--jump cali-from-host-endpoint"));
        prerouting.push(is(ACCEPT, "--jump ACCEPT"));
        let output =
            [&clear(ALL), "--jump cali-to-host-endpoint", &is(ACCEPT, "--jump ACCEPT")].map(str::to_owned);
        // Before connection tracking, replies have to be accepted too.
        let failsafe = |to: &[_], from: &[_]| [ports(to, "destination"), ports(from, "source")].concat();
        vec![
            ("cali-PREROUTING".to_owned(), prerouting),
            ("cali-OUTPUT".to_owned(), output.to_vec()),
            ("cali-failsafe-in".to_owned(), failsafe(&FAILSAFE_IN, &FAILSAFE_OUT)),
            ("cali-failsafe-out".to_owned(), failsafe(&FAILSAFE_OUT, &FAILSAFE_IN)),
            chain("cali-from-host-endpoint", []),
            chain("cali-to-host-endpoint", []),
        ]
    }

    fn nat(&self) -> Vec<Chain> {
        let mut postrouting = vec!["--jump cali-fip-snat".to_owned(), "--jump cali-nat-outgoing".to_owned()];
        if self.ipip {
            postrouting.push(
                "--out-interface tunl0 -m addrtype ! --src-type LOCAL --limit-iface-out \
                 -m addrtype --src-type LOCAL --jump MASQUERADE"
                    .to_owned(),
            );
        }
        let outgoing = self.masquerade.then(|| {
            "-m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst --jump MASQUERADE"
                .to_owned()
        });
        vec![
            chain("cali-PREROUTING", ["--jump cali-fip-dnat"]),
            ("cali-POSTROUTING".to_owned(), postrouting),
            chain("cali-OUTPUT", ["--jump cali-fip-dnat"]),
            ("cali-nat-outgoing".to_owned(), outgoing.into_iter().collect()),
            chain("cali-fip-dnat", []),
            chain("cali-fip-snat", []),
        ]
    }

    fn filter(&self) -> Vec<Chain> {
        let accepted = said("Host endpoint policy accepted packet.", &is(ACCEPT, "--jump ACCEPT"));
        let already = is(ACCEPT, "--jump ACCEPT");
        let host_ends = |jump: &str| vec![clear(ALL), jump.to_owned(), accepted.clone()];
        let (mut input, mut output) = (vec![already.clone()], vec![already]);
        if self.ipip {
            input.push(said(
                "Allow IPIP packets from Calico hosts",
                "-p 4 -m set --match-set cali40all-hosts src -m addrtype --dst-type LOCAL --jump ACCEPT",
            ));
            input.push(said("Drop IPIP packets from non-Calico hosts", "-p 4 --jump DROP"));
        }
        input.push("--in-interface cali+ --goto cali-wl-to-host".to_owned());
        input.extend(host_ends("--jump cali-from-host-endpoint"));
        output.push("--out-interface cali+ --jump RETURN".to_owned());
        if self.ipip {
            output.push(said(
                "Allow IPIP packets to other Calico hosts",
                "-p 4 -m set --match-set cali40all-hosts dst -m addrtype --src-type LOCAL --jump ACCEPT",
            ));
        }
        output.extend(host_ends("--jump cali-to-host-endpoint"));
        let forward = vec![
            "--in-interface cali+ --jump cali-from-wl-dispatch".to_owned(),
            "--out-interface cali+ --jump cali-to-wl-dispatch".to_owned(),
            "--in-interface cali+ --jump ACCEPT".to_owned(),
            "--out-interface cali+ --jump ACCEPT".to_owned(),
            clear("0xe000000"),
            is_not(ACCEPT, "--jump cali-from-host-endpoint"),
            "--jump cali-to-host-endpoint".to_owned(),
            accepted.clone(),
        ];
        // ICMPv6 types that an IPv6 router has to receive.
        let received: &[u8] = if self.v4 { &[] } else { &[130, 131, 132, 133, 135, 136] };
        let mut to_host: Vec<String> = received
            .iter()
            .map(|kind| format!("-p 58 -m icmp6 --icmpv6-type {kind} --jump ACCEPT"))
            .collect();
        to_host.push("--jump cali-from-wl-dispatch".to_owned());
        to_host.push(said("Configured DefaultEndpointToHostAction", "--jump RETURN"));
        let unknown = said("Unknown interface", "--jump DROP");
        let (interface, profile) = (self.interface, self.profile);
        let mut chains = vec![
            ("cali-INPUT".to_owned(), input),
            ("cali-FORWARD".to_owned(), forward),
            ("cali-OUTPUT".to_owned(), output),
            ("cali-wl-to-host".to_owned(), to_host),
            ("cali-failsafe-in".to_owned(), ports(&FAILSAFE_IN, "destination")),
            ("cali-failsafe-out".to_owned(), ports(&FAILSAFE_OUT, "destination")),
            chain("cali-from-host-endpoint", []),
            chain("cali-to-host-endpoint", []),
            chain(
                "cali-from-wl-dispatch",
                [&format!("--in-interface {interface} --goto cali-fw-{interface}"), &unknown],
            ),
            chain(
                "cali-to-wl-dispatch",
                [&format!("--out-interface {interface} --goto cali-tw-{interface}"), &unknown],
            ),
            self.endpoint("fw", "po", "pro"),
            self.endpoint("tw", "pi", "pri"),
        ];
        let allow = |name: String, when: &str| {
            let mark = if when.is_empty() { set(ACCEPT) } else { format!("{when} {}", set(ACCEPT)) };
            (name, vec![mark, is(ACCEPT, "--jump RETURN")])
        };
        chains.push(allow(format!("cali-pri-{profile}"), ""));
        chains.push(allow(format!("cali-pro-{profile}"), ""));
        if let Some((policy, [inbound, outbound])) = self.policy {
            chains.push(allow(format!("cali-pi-{policy}"), inbound));
            chains.push(allow(format!("cali-po-{policy}"), outbound));
        }
        chains
    }

    /// Returns one of the two chains of the workload.
    fn endpoint(&self, way: &str, policies: &str, profiles: &str) -> Chain {
        let mut rules = vec![
            "-m conntrack --ctstate RELATED,ESTABLISHED --jump ACCEPT".to_owned(),
            "-m conntrack --ctstate INVALID --jump DROP".to_owned(),
            clear(ACCEPT),
        ];
        if let Some((policy, _)) = self.policy {
            rules.extend([
                said("Start of policies", &clear(PASS)),
                is_not(PASS, &format!("--jump cali-{policies}-{policy}")),
                said("Return if policy accepted", &is(ACCEPT, "--jump RETURN")),
                said("Drop if no policies passed packet", &is_not(PASS, "--jump DROP")),
            ]);
        }
        rules.extend([
            format!("--jump cali-{profiles}-{}", self.profile),
            said("Return if profile accepted", &is(ACCEPT, "--jump RETURN")),
            said("Drop if no profiles matched", "--jump DROP"),
        ]);
        (format!("cali-{way}-{}", self.interface), rules)
    }
}

fn mangle() -> Vec<Chain> {
    let accepted = said("Host endpoint policy accepted packet.", &is(ACCEPT, "--jump ACCEPT"));
    vec![
        chain(
            "cali-PREROUTING",
            [
                "-m conntrack --ctstate RELATED,ESTABLISHED --jump ACCEPT",
                &is(ACCEPT, "--jump ACCEPT"),
                "--in-interface cali+ --jump ACCEPT",
                "--jump cali-from-host-endpoint",
                &accepted,
            ],
        ),
        ("cali-failsafe-in".to_owned(), ports(&FAILSAFE_IN, "destination")),
        chain("cali-from-host-endpoint", []),
    ]
}

fn append(out: &mut String, verb: &str, chain: &str, rules: &[String]) {
    for (rule, hash) in rules.iter().zip(hashes(chain, rules)) {
        let _ = writeln!(out, "{verb} {chain} -m comment --comment \"cali:{hash}\" {rule}");
    }
}
