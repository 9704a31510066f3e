//! Lab of a migration: its topology, commands in it, and the kernel state of its first host.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::felix_rules::calico1;
use crate::interop::calico::{BIRD, OTHERS, SETS, felix};
use crate::interop::migrate::calico3::{Network, TUNNEL_DEVICE};
use crate::interop::rig::{self, DEADLINE, Net, within};

/// Returns the text of the lab file; `DIR` contains files of the test.
fn text(dir: &Path) -> String {
    let mut nodes = String::new();
    let mut links = String::new();
    for n in 1..=3 {
        let command = match n {
            3 => "tortie --datastore sqlite:/store/store.db --node host3 agent".to_owned(),
            _ => format!("bird -f -R -s /run/bird{n}.ctl -c /lab/bird{n}.conf"),
        };
        let _ = write!(
            nodes,
            "    host{n}:\n      group: host\n      cmd: {command}\n      exec:\n        - ip addr add 169.254.1.1/32 dev cali1 scope link\n        \
             - ip route add 10.244.{n}.1/32 dev cali1 proto boot\n        - ip -6 addr add fe80::1/64 dev cali1 nodad\n        \
             - ip -6 route replace fd00:10:244:{n}::1/128 dev cali1 proto boot\n    web{n}:\n      group: workload\n      \
             stages: {{configure: {{wait-for: [{{node: host{n}, stage: create-links}}]}}}}\n"
        );
        let _ = write!(
            links,
            "    - {{endpoints: [\"host{n}:eth1\", \"switch:eth{n}\"], ipv4: [172.30.0.{n}/24], ipv6: [\"fd00:172:30::{n}/64\"]}}\n    \
             - {{endpoints: [\"host{n}:cali1\", \"web{n}:eth1\"], ipv4: [\"\", 10.244.{n}.1/32], ipv6: [\"\", \"fd00:10:244:{n}::1/128\"]}}\n"
        );
    }
    let store = dir.join("store.json");
    let store = store.display();
    format!(
        "name: migrate{pid}\ntopology:\n  defaults: {{kind: linux, image: tortie, network-mode: none}}\n  groups:\n    host:\n      \
         binds: [\"__clabDir__/store:/store\", \"{dir}:/lab\"]\n      sysctls: {{net.ipv4.ip_forward: 1, net.ipv6.conf.all.forwarding: 1}}\n      \
         stages: {{create: {{wait-for: [{{node: store, stage: exit}}]}}}}\n    workload:\n      cmd: sleep infinity\n      exec:\n        \
         - ip route add 169.254.1.1 dev eth1\n        - ip route add default via 169.254.1.1\n        \
         - ip -6 route add default via fe80::1 dev eth1\n  nodes:\n    store:\n      \
         binds: [\"__clabDir__/store:/store\", \"{store}:/lab/store.json:ro\"]\n      \
         cmd: tortie --datastore sqlite:/store/store.db store import /lab/store.json\n    switch:\n      cmd: sleep infinity\n      exec:\n        \
         - ip link add br0 type bridge\n        - ip link set eth1 master br0\n        - ip link set eth2 master br0\n        \
         - ip link set eth3 master br0\n        - ip link set br0 up\n      stages: {{configure: {{wait-for: [{{node: host1, stage: create-links}}, \
         {{node: host2, stage: create-links}}, {{node: host3, stage: create-links}}]}}}}\n{nodes}  links:\n{links}",
        pid = std::process::id(),
        dir = dir.display(),
    )
}

/// Returns the folder of unpacked peer programs.
pub(super) fn peers() -> Option<PathBuf> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/bin");
    let dir = std::env::var_os("TORTIE_PEERS").map_or_else(|| PathBuf::from(own), PathBuf::from);
    let whole = ["bird", "iptables-nft-save", "ipset"].iter().all(|name| dir.join(name).is_file());
    assert!(whole || std::env::var_os("CI").is_none(), "bird, iptables or ipset is missing in CI");
    whole.then_some(dir)
}

/// Creates both variants of iptables under Debian's names, which run the unpacked ones. In `plain-nft` and
/// `plain-legacy` only one of them exists, under the name `iptables`, next to the other tools of a migration.
fn tools(dir: &Path) {
    let peers = peers().unwrap();
    let root = peers.parent().unwrap().join("root");
    let script = std::fs::read_to_string(peers.join("iptables-nft-save")).unwrap();
    let head: Vec<&str> =
        script.lines().filter(|l| !l.starts_with("r=") && !l.starts_with("exec ")).collect();
    std::fs::create_dir_all(dir).unwrap();
    for backend in ["legacy", "nft"] {
        let plain = dir.with_file_name(format!("plain-{backend}"));
        std::fs::create_dir_all(&plain).unwrap();
        for name in ["bird", "ipset"] {
            let run = format!("exec {}/{name} \"$@\"", peers.display());
            program(&plain.join(name), &["#!/bin/sh", &run]);
        }
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tortie"), plain.join("tortie")).unwrap();
        for family in ["iptables", "ip6tables"] {
            for verb in ["", "-save", "-restore"] {
                let mut lines = head.clone();
                let set = format!("r={}", root.display());
                let run = format!("exec \"$r/usr/sbin/xtables-{backend}-multi\" {family}{verb} \"$@\"");
                lines.insert(1, &set);
                lines.push(&run);
                program(&dir.join(format!("{family}-{backend}{verb}")), &lines);
                program(&plain.join(format!("{family}{verb}")), &lines);
            }
        }
    }
}

fn program(path: &Path, lines: &[&str]) {
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Release of Calico on host 1, and the form of its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calico {
    /// Calico 2 with rules of a backend of iptables: `legacy` or `nft`.
    Two(&'static str),
    /// Calico 3 likewise, or with its own tables: `nftables`.
    Three(&'static str, Network),
}

impl Calico {
    /// Returns the backend of iptables, in which other programs have rules.
    fn iptables(self) -> &'static str {
        match self {
            Self::Two(backend) | Self::Three(backend, _) if backend != "nftables" => backend,
            _ => "nft",
        }
    }

    fn has_own_tables(self) -> bool {
        matches!(self, Self::Three("nftables", _))
    }

    fn network(self) -> Option<Network> {
        match self {
            Self::Two(_) => None,
            Self::Three(_, network) => Some(network),
        }
    }

    /// Returns BIRD's configuration, without its sessions.
    fn bird(self) -> String {
        let pool = "10.244.0.0/16";
        match self.network().filter(|network| network.is_felix()) {
            None => BIRD.to_owned(),
            Some(_) => BIRD
                .replacen("export all;", &format!("export where ! (net ~ {pool});"), 1)
                .replace(&format!("  if (net ~ {pool}) then accept;\n"), ""),
        }
    }

    fn store(self) -> String {
        if let Some(network) = self.network() {
            return network.store();
        }
        let data = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/topology/labs/dual-stack/store.json"
        ))
        .unwrap();
        let (bare, masquerades) =
            (r#"\"cidr\": \"10.244.0.0/16\"}"#, r#"\"cidr\": \"10.244.0.0/16\", \"masquerade\": true}"#);
        let data = data.replace(bare, masquerades);
        // `migrate check` requires this setting on hosts with both families.
        let (mesh, both) = (r#"{\"enabled\": true}"#, r#"{\"enabled\": true, \"per_family\": true}"#);
        let data = data.replace(mesh, both);
        assert!(data.contains("masquerade") && data.contains("per_family"));
        data
    }

    /// Returns the lines of `text` without what is Felix's, if it has its own tables.
    fn of_iptables(self, text: &str) -> String {
        let lines = text.lines().filter(|line| !self.has_own_tables() || !line.contains("cali"));
        lines.map(|line| format!("{line}\n")).collect()
    }
}

/// Time limit of a command that moves a host; each of its waits ends earlier.
const COMMAND: Duration = Duration::from_secs(200);
const ROLLBACK: &str = "rollback --state-dir /lab/state --wait 60 --start-with 'sh /lab/bird1'";

/// A lab in which host 1 runs Calico.
pub(super) struct Site {
    pub(super) net: Net,
    pub(super) dir: tempfile::TempDir,
    calico: Calico,
    backend: &'static str,
    /// Search path of the migration's tools.
    pub(super) path: String,
}

/// Kernel state of Calico and of other programs on host 1, line by line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    routes: BTreeSet<String>,
    pub(super) rules: String,
    pub(super) sets: BTreeSet<String>,
    tables: String,
    /// Tunnel devices with their addresses and entries.
    pub(super) devices: BTreeSet<String>,
    /// Felix's own tables.
    pub(super) felix: String,
}

impl Site {
    pub(super) fn up(calico: Calico) -> Option<Self> {
        peers()?;
        let dir = tempfile::tempdir().unwrap();
        tools(&dir.path().join("bin"));
        for n in [1, 2] {
            let mut conf = calico.bird().replace('N', &n.to_string());
            for other in (1..=3).filter(|other| *other != n) {
                let passive = if other > n { " passive on;" } else { "" };
                let _ = writeln!(
                    conf,
                    "protocol bgp Mesh_172_30_0_{other} from bgp_template {{ neighbor 172.30.0.{other} as 64512;{passive} }}\n\
                     protocol bgp Mesh_fd00_172_30__{other} from bgp_template6 {{ neighbor fd00:172:30::{other} as 64512;{passive} }}"
                );
            }
            std::fs::write(dir.path().join(format!("bird{n}.conf")), conf).unwrap();
        }
        let data = calico.store();
        std::fs::write(dir.path().join("store.json"), &data).unwrap();
        let net =
            Net::text(&text(dir.path()), &dir.path().join("lab.clab.yml"), &data, rig::Backend::Sqlite)?;
        let path = format!("/lab/bin:{}:$PATH", peers().unwrap().display());
        let site = Self { net, dir, calico, backend: calico.iptables(), path };
        site.felix();
        let agent = "setsid tortie --datastore sqlite:/store/store.db --node host1 agent >> /lab/agent.log 2>&1 < /dev/null &\n";
        std::fs::write(site.dir.path().join("agent"), agent).unwrap();
        for n in [1, 2] {
            let bird = format!(
                "setsid bird -f -R -s /run/bird{n}.ctl -c /lab/bird{n}.conf > /lab/bird{n}.log 2>&1 < /dev/null &\n"
            );
            std::fs::write(site.dir.path().join(format!("bird{n}")), bird).unwrap();
        }
        site.meshed();
        Some(site)
    }

    /// Writes what Felix left on host 1, and on the other host of Calico what packets need.
    fn felix(&self) {
        let (write, network) = (|name: &str, text: String| self.write(name, &text), self.calico.network());
        write("others", self.calico.of_iptables(OTHERS));
        let more = network.map(Network::sets).unwrap_or_default();
        write("sets", self.calico.of_iptables(&(SETS.to_owned() + &more)));
        self.sh("ipset restore < /lab/sets").unwrap();
        for (tool, v4) in [("iptables", true), ("ip6tables", false)] {
            let restore = format!("{tool}-{}-restore --noflush", self.backend);
            self.sh(&format!("{restore} < /lab/others")).unwrap();
            match network.filter(|_| self.calico.has_own_tables()) {
                Some(network) => {
                    write(tool, network.table(v4));
                    self.sh(&format!("nft -f /lab/{tool}")).unwrap();
                }
                None => {
                    write(tool, felix(v4));
                    self.sh(&format!("{restore} < /lab/{tool}")).unwrap();
                }
            }
        }
        if let Some(network) = network {
            if network == Network::Ipip {
                self.on(3, TUNNEL_DEVICE).unwrap();
            }
            for n in [1, 2] {
                write(&format!("felix{n}"), network.felix(n));
                self.on(i32::try_from(n).unwrap(), &format!("sh /lab/felix{n}")).unwrap();
            }
        }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// Replaces Calico 2 by Calico 1, in the one family that has a set of pools.
    pub(super) fn calico_1(&self) {
        let dir = self.dir.path();
        let bare =
            OTHERS.lines().filter(|line| !line.contains("cali:")).collect::<Vec<_>>().join("\n") + "\n";
        std::fs::write(dir.join("bare"), bare).unwrap();
        std::fs::write(dir.join("old"), calico1::RULES).unwrap();
        std::fs::write(dir.join("oldsets"), calico1::SETS).unwrap();
        let empty: String = ["raw", "mangle", "nat"].map(|table| format!("*{table}\nCOMMIT\n")).concat();
        std::fs::write(dir.join("empty"), empty).unwrap();
        for tool in ["iptables", "ip6tables"] {
            let restore = format!("{tool}-{}-restore", self.backend);
            self.sh(&format!(
                "{restore} < /lab/empty && {restore} < /lab/bare && {restore} --noflush < /lab/old"
            ))
            .unwrap();
        }
        std::fs::write(dir.join("oldnat"), calico1::NAT).unwrap();
        self.sh(&format!(
            "ipset destroy cali40masq-ipam-pools; ipset destroy cali40all-ipam-pools; ipset restore < /lab/oldsets; \
             iptables-{}-restore --noflush < /lab/oldnat",
            self.backend
        ))
        .unwrap();
    }

    /// Runs a shell line on host 1.
    pub(super) fn sh(&self, line: &str) -> Result<String, String> {
        self.on(1, line)
    }

    /// Runs a shell line on a host.
    pub(super) fn on(&self, n: i32, line: &str) -> Result<String, String> {
        let line = format!("PATH=/lab/bin:{}:$PATH; {line}", peers().unwrap().display());
        self.net.run(&format!("host{n}"), &["sh", "-c", &line])
    }

    /// Waits until each of the three hosts has the blocks of the two others, written by any daemon.
    pub(super) fn meshed(&self) {
        for n in 1..=3 {
            within(DEADLINE, Instant::now(), "the mesh", || {
                let script = "ip route; ip -6 route";
                let routes = self.net.run(&format!("host{n}"), &["sh", "-c", script])?;
                let others = (1..=3).filter(|other| *other != n);
                let has = |o: &i32| {
                    let blocks = [format!("10.244.{o}.0/26"), format!("fd00:10:244:{o}::/122")];
                    blocks.iter().all(|block| routes.contains(block.as_str()))
                };
                let missing: Vec<_> = others.filter(|o| !has(o)).collect();
                if missing.is_empty() {
                    Ok(())
                } else {
                    Err(format!("host{n} has none of {missing:?}: {routes}"))
                }
            });
        }
    }

    pub(super) fn kernel(&self) -> Kernel {
        let lines = |text: String| text.lines().map(|l| l.trim_end().to_owned()).collect::<BTreeSet<_>>();
        let rules = self.sh(&format!("iptables-{0}-save; ip6tables-{0}-save", self.backend)).unwrap();
        // Counters and dates change.
        let rules =
            rules.lines().filter(|l| !l.starts_with('#')).map(|l| l.split(" [").next().unwrap_or_default());
        let mut rules: Vec<&str> = rules.collect();
        // A backend lists tables in the order of their creation.
        let text = rules.join("\n");
        let mut tables: Vec<&str> =
            text.split("COMMIT").map(str::trim).filter(|t| t.contains("\n-A")).collect();
        tables.sort_unstable();
        rules = tables;
        let chains_sorted: Vec<String> = rules
            .iter()
            .map(|table| {
                let mut chains: Vec<&str> = table.lines().filter(|l| l.starts_with(':')).collect();
                chains.sort_unstable();
                let mut by_chain: Vec<&str> = table.lines().filter(|l| l.starts_with("-A")).collect();
                by_chain.sort_by_key(|l| l.split(' ').nth(1).map(str::to_owned));
                [chains, by_chain].concat().join("\n")
            })
            .collect();
        Kernel {
            routes: lines(self.sh("ip route; ip -6 route").unwrap()),
            rules: chains_sorted.join("\n"),
            sets: lines(self.sh("ipset save").unwrap()),
            tables: self.sh("nft list tables | grep -v ' ip '; ip nexthop").unwrap_or_default(),
            devices: self.devices(),
            felix: self.sh("nft -s list table ip calico; nft -s list table ip6 calico").unwrap_or_default(),
        }
    }

    fn devices(&self) -> BTreeSet<String> {
        if self.calico.network().is_none() {
            return BTreeSet::new();
        }
        let script = "for d in vxlan.calico tunl0; do ip -d link show $d; ip -4 addr show $d; bridge fdb show dev $d; \
                      ip -4 neigh show dev $d nud permanent; done 2>/dev/null; true";
        self.sh(script).unwrap().lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Returns the process id of BIRD on host 1.
    pub(super) fn bird(&self) -> String {
        // BIRD was started in the background a moment ago.
        let begin = Instant::now();
        let (found, _) = within(DEADLINE, begin, "BIRD runs", || match self.birds(1).as_slice() {
            [pid] => Ok(pid.clone()),
            other => Err(format!("{other:?}: {}", self.file("bird1.log"))),
        });
        found
    }

    fn birds(&self, n: i32) -> Vec<String> {
        let script = "for p in /proc/[0-9]*; do [ \"$(cat $p/comm 2>/dev/null)\" = bird ] || continue; \
                      [ \"$(readlink $p/ns/net)\" = \"$(readlink /proc/self/ns/net)\" ] && basename $p; done; true";
        self.on(n, script).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// Kills BIRD of a host.
    pub(super) fn kill_bird(&self, n: i32) {
        for pid in self.birds(n) {
            self.on(n, &format!("kill -9 {pid}")).unwrap();
        }
        within(DEADLINE, Instant::now(), "BIRD has ended", || match self.birds(n).as_slice() {
            [] => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    pub(super) fn start_bird(&self, n: i32) {
        self.on(n, &format!("sh /lab/bird{n}")).unwrap();
    }

    pub(super) fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Runs `tortie migrate WORDS`; returns the exit status in shell notation and the output.
    fn command(&self, words: &str, environment: &str) -> Result<(i32, Output), String> {
        let line = format!(
            "PATH={}; rm -f /lab/status; TORTIE_BIRD_SOCKET=/run/bird1.ctl {environment} \
             tortie --datastore sqlite:/store/store.db --node host1 -o json migrate {words}; echo $? > /lab/status",
            self.path
        );
        let begin = self.net.started.elapsed();
        let output = self.net.output_within(COMMAND, "host1", &["sh", "-c", &line])?;
        println!(
            "from {begin:?} to {:?}: {}",
            self.net.started.elapsed(),
            words.split(' ').next().unwrap_or(words)
        );
        let status = self.file("status");
        let status = status.trim().parse().map_err(|e| format!("{words}: cut off: {e}: {output:?}"))?;
        Ok((status, output))
    }

    /// Runs `tortie migrate WORDS`; returns its report, or all its output as error.
    pub(super) fn migrate(&self, words: &str) -> Result<Value, String> {
        let (status, output) = self.command(words, "")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if status != 0 {
            let log = self.file("agent.log");
            let log: Vec<&str> = log.lines().rev().take(12).collect();
            return Err(format!("{words}: exit status {status}: {text}{error}\n{}", log.join("\n")));
        }
        let report: Value =
            serde_json::from_str(&text).map_err(|e| format!("{words}: {e}: {text}{error}"))?;
        let steps = report["steps"].as_array().into_iter().flatten();
        let steps: Vec<String> = steps.map(|step| format!("{} {}", step["step"], step["seconds"])).collect();
        println!("    {}", steps.join(", "));
        Ok(report)
    }

    /// Runs a command that is killed at this point of its work. The test fails if the command ends by itself,
    /// even with an error.
    fn killed(&self, words: &str, at: &str) {
        /// Exit status in shell notation of a child that was killed by SIGKILL.
        const KILLED: i32 = 128 + 9;
        let (status, output) = self.command(words, &format!("TORTIE_MIGRATE_HALT={at}")).unwrap();
        assert_eq!(status, KILLED, "{words}: not killed at {at}: {output:?}\n{}", self.file("agent.log"));
    }

    fn adopting(&self) -> String {
        let stop = match self.birds(1).is_empty() {
            true => String::new(),
            false => format!("--pid {}", self.bird()),
        };
        format!("adopt --state-dir /lab/state --wait 60 --agent-with 'sh /lab/agent' {stop}")
    }

    pub(super) fn adopt(&self) -> Result<Value, String> {
        self.migrate(&self.adopting())
    }

    pub(super) fn adopt_killed(&self, at: &str) {
        self.killed(&self.adopting(), at);
    }

    pub(super) fn rollback(&self) -> Result<Value, String> {
        self.migrate(ROLLBACK)
    }

    pub(super) fn rollback_killed(&self, at: &str) {
        self.killed(ROLLBACK, at);
    }

    /// Checks that a purge is rejected during the migration, even with `--force`.
    pub(super) fn is_not_purged(&self, next: &str) {
        let line = "tortie --datastore sqlite:/store/store.db --node host1 purge --force --state-dir /lab/state 2>&1; echo exit $?";
        let said = self.sh(line).unwrap();
        assert!(
            said.contains("a move from Calico was begun")
                && said.contains(next)
                && said.ends_with("exit 7\n"),
            "{said}"
        );
        let now = self.kernel();
        let ours = now.routes.iter().any(|line| line.contains("proto 179"));
        assert!(ours && now.tables.contains("table inet tortie"), "{now:?}");
    }

    pub(super) fn is_ours(&self) {
        let now = self.kernel();
        assert!(!now.rules.contains("cali") && now.rules.contains("of somebody else"), "{}", now.rules);
        assert!(!now.sets.iter().any(|l| l.contains("cali")) && now.sets.len() == 2, "{:?}", now.sets);
        assert!(now.tables.contains("table inet tortie"), "{}", now.tables);
        assert!(!now.routes.iter().any(|l| l.contains("proto bird")), "{:?}", now.routes);
        let of_felix = |l: &String| {
            let is_other = l.contains("proto 179") || l.contains("proto kernel");
            l.contains("proto 80") || l.contains("vxlan.calico") && !is_other
        };
        assert!(!now.routes.iter().any(of_felix), "{:?}", now.routes);
        assert_eq!(now.felix, "");
        let ours = now.routes.iter().filter(|l| l.contains("proto 179 metric 1790"));
        assert_eq!(ours.count(), 6, "{:?}", now.routes);
    }
}
