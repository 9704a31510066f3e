//! What is seen of a host, judged: pure.

use serde::Serialize;

use crate::agent;
use crate::api::problem::Problem;
use crate::cli::doctor::host_state::{HostState, PORTS};
use crate::cli::failure::Exit;
use tortie_kernel::{KernelCapability, ProbeOutcome};

/// How one thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::cli) enum CheckResult {
    /// It works.
    Ok,
    /// It works, and may surprise.
    Warn,
    /// It will not work.
    Fail,
    /// It could not be tried or read.
    NotTried,
}

impl CheckResult {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
            Self::NotTried => "--",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct CheckItem {
    /// Stable, for machines.
    pub(in crate::cli) code: String,
    /// How it is.
    pub(in crate::cli) result: CheckResult,
    /// For people.
    pub(in crate::cli) text: String,
    /// More of it; often empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(in crate::cli) detail: String,
    /// What mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) fix: Option<String>,
}

/// Collects findings.
#[derive(Debug, Default)]
struct CheckItems(Vec<CheckItem>);

impl CheckItems {
    fn add(&mut self, result: CheckResult, code: &str, text: impl Into<String>, fix: Option<&str>) {
        let fix = fix.map(str::to_owned);
        let finding =
            CheckItem { code: code.to_owned(), result, text: text.into(), detail: String::new(), fix };
        self.0.push(finding);
    }

    fn ok(&mut self, code: &str, text: impl Into<String>) {
        self.add(CheckResult::Ok, code, text, None);
    }

    fn warn(&mut self, code: &str, text: impl Into<String>, fix: &str) {
        self.add(CheckResult::Warn, code, text, Some(fix));
    }

    fn fail(&mut self, code: &str, text: impl Into<String>, fix: &str) {
        self.add(CheckResult::Fail, code, text, Some(fix));
    }

    fn skip(&mut self, code: &str, text: impl Into<String>) {
        self.add(CheckResult::NotTried, code, text, None);
    }
}

/// Judges a host.
pub(super) fn check(seen: &HostState) -> Vec<CheckItem> {
    let mut found = CheckItems::default();
    kernel(seen, &mut found);
    sockets(seen, &mut found);
    capabilities(seen, &mut found);
    ports(seen, &mut found);
    others(seen, &mut found);
    store(seen, &mut found);
    agent(seen, &mut found);
    // The agent knows its ways out, and what it may do itself.
    let reported: Vec<&Problem> = match &seen.agent {
        Some(Ok(status)) => status.problems.iter().filter(|p| p.next == "tortie doctor").collect(),
        _ => Vec::new(),
    };
    for problem in &reported {
        found.warn(&problem.code, host_problems(problem), &agent::fix_for(problem));
    }
    for problem in agent::check_host(&seen.host_state, None, &seen.role) {
        // What this shell may do is judged above.
        if problem.code != "missing-capability"
            && reported.iter().all(|reported| reported.code != problem.code)
        {
            found.warn(&problem.code, host_problems(&problem), &agent::fix_for(&problem));
        }
    }
    found.0
}

fn host_problems(problem: &Problem) -> String {
    format!("{}: {}", problem.subject, problem.text)
}

fn kernel(seen: &HostState, found: &mut CheckItems) {
    let kernel = &seen.kernel;
    let works = |a: &&KernelCapability| matches!(a.outcome, ProbeOutcome::Works(_));
    let (works, rest): (Vec<&KernelCapability>, Vec<&KernelCapability>) =
        seen.kernel_features.iter().partition(works);
    if let Some(KernelCapability { outcome: ProbeOutcome::NotTried(why), .. }) = rest.first() {
        let names: Vec<&str> = rest.iter().map(|a| a.name).collect();
        return found.skip("kernel", format!("kernel {kernel}: {why} (not tried: {})", names.join(", ")));
    }
    let names = |a: &&KernelCapability| match &a.outcome {
        ProbeOutcome::Works(seen) if !seen.is_empty() => format!("{} ({seen})", a.name),
        _ => a.name.to_owned(),
    };
    let names: Vec<String> = works.iter().map(names).collect();
    if !names.is_empty() {
        let text = format!("kernel {kernel}: {} (tried in a throw-away namespace)", names.join(", "));
        found.ok("kernel", text);
        if let Some(finding) = found.0.last_mut() {
            let about: Vec<&str> = works.iter().map(|a| a.about).collect();
            finding.detail = about.join(", ");
        }
    }
    let wants_ipip = matches!(&seen.store, Some(Ok(store)) if store.ipip);
    for ability in rest {
        let ProbeOutcome::Refused(answer) = &ability.outcome else { continue };
        let text = format!(
            "kernel {kernel} does not do {} ({}), needed for {}: {answer}",
            ability.name, ability.about, ability.needed_for
        );
        let module = match ability.name {
            "ipip" => {
                "modprobe ipip, or a kernel that has it (CONFIG_NET_IPIP); or take `ipip` out of the pools"
            }
            "links" => "modprobe veth, or a kernel that has it (CONFIG_VETH)",
            "nexthop-objects" => "nothing has to be done: gateways stand in the routes themselves then",
            "conntrack" => "modprobe nf_conntrack_netlink, or a kernel that has it (CONFIG_NF_CT_NETLINK)",
            "routes" => "run it as root, with CAP_NET_ADMIN",
            _ => {
                "modprobe nf_tables, or a kernel that has it (CONFIG_NF_TABLES_INET, CONFIG_NFT_*); or --policy off"
            }
        };
        if ability.optional && !(ability.name == "ipip" && wants_ipip) {
            found.warn(ability.name, text, module);
        } else {
            found.fail(ability.name, text, module);
        }
    }
}

fn sockets(seen: &HostState, found: &mut CheckItems) {
    let good: Vec<&str> = seen.sockets.iter().filter(|s| s.outcome.is_ok()).map(|s| s.name).collect();
    if !good.is_empty() {
        found.ok("sockets", format!("BGP sockets: {}", good.join(", ")));
    }
    for ability in &seen.sockets {
        let Err(answer) = &ability.outcome else { continue };
        let text = format!("{} does not work, needed for {}: {answer}", ability.name, ability.needed_for);
        let fix = match ability.name {
            "real-time" => "give the service CAP_SYS_NICE, as packaging/systemd/tortie.service does",
            "tcp-ao" => "Linux 6.7 or later with CONFIG_TCP_AO, where peers ask for it",
            "tcp-md5" => "a kernel with CONFIG_TCP_MD5SIG, where peers have passwords",
            _ => "a newer kernel",
        };
        found.warn(ability.name, text, fix);
    }
}

/// Which numbers of capability.h the agent needs, and what each is for.
const NEEDED: [(u8, &str, &str); 4] = [
    (12, "CAP_NET_ADMIN", "routes, rules and TCP MD5"),
    (10, "CAP_NET_BIND_SERVICE", "TCP port 179"),
    (13, "CAP_NET_RAW", "unnumbered peers"),
    (21, "CAP_SYS_ADMIN", "the leak check, which enters network namespaces"),
];

fn capabilities(seen: &HostState, found: &mut CheckItems) {
    let Some(held) = seen.capabilities else {
        return found.skip("capabilities", "the capabilities of this process cannot be read");
    };
    let missing: Vec<_> = NEEDED.iter().filter(|(bit, ..)| held >> bit & 1 == 0).collect();
    if missing.is_empty() {
        return found
            .ok("capabilities", "capabilities: an agent that is started from here has what it needs");
    }
    // Often it is a person who asks, and systemd that starts the agent.
    for (_, name, use_for) in missing {
        let text = format!("{name} is missing here ({use_for}): an agent that is started from here lacks it");
        found.warn(
            "missing-capability",
            text,
            "sudo tortie doctor; systemd starts the agent with all it needs",
        );
    }
}

fn ports(seen: &HostState, found: &mut CheckItems) {
    let runs = matches!(&seen.agent, Some(Ok(_)));
    for port in PORTS {
        let what = if port == 179 { "BGP" } else { "health, metrics and the API" };
        let flag = if port == 179 { "--bgp-listen ADDR:PORT" } else { "--http ADDR:PORT" };
        match seen.ports.get(&port).map(Vec::as_slice).unwrap_or_default() {
            [] => found.ok("port", format!("tcp/{port} is free ({what})")),
            owners if runs && owners.iter().all(|o| o.name == "tortie" || o.pid == 0) => {
                found.ok("port", format!("tcp/{port} is the agent's ({what})"));
            }
            owners => {
                let names: Vec<String> = owners
                    .iter()
                    .map(|o| if o.pid == 0 { o.name.clone() } else { format!("{} (pid {})", o.name, o.pid) })
                    .collect();
                let text = format!("tcp/{port} ({what}) is taken by {}", names.join(", "));
                let fix = match owners.first() {
                    Some(o) if o.pid != 0 => format!("stop it (systemctl stop {}), or {flag}", o.name),
                    _ => format!("stop it, or {flag}"),
                };
                found.fail("port-taken", text, &fix);
            }
        }
    }
}

/// Those who did the work before us, and those who would undo it.
fn others(seen: &HostState, found: &mut CheckItems) {
    for rival in &seen.other_daemons {
        let text = format!("{} runs (pid {}): two write the same routes and rules", rival.name, rival.pid);
        let fix = match rival.name.as_str() {
            "bgpd" => "stop it before the agent starts: systemctl disable --now bgpd",
            _ => "tortie migrate check, then tortie migrate adopt: takes over while packets flow",
        };
        found.fail("rival", text, fix);
    }
    for (rules, tool) in seen.felix_rules.iter().zip(["iptables-legacy", "iptables-nft"]) {
        match rules {
            Some(0) => {}
            Some(n) => {
                let text =
                    format!("{tool} has {n} rules of Felix (cali-*), which still filter in addition to ours");
                let fix =
                    "tortie migrate adopt takes them away when ours are in force; packets flow meanwhile";
                found.fail("felix-rules", text, fix);
            }
            None => {
                found.skip("felix-rules", format!("the rules of {tool} cannot be listed: try it as root"))
            }
        }
    }
    match seen.network_manager {
        None => {}
        Some(true) => found.ok("network-manager", "NetworkManager runs and leaves cali* alone"),
        Some(false) => found.warn(
            "network-manager",
            "NetworkManager runs and may take over workload interfaces (cali*) and tunl0",
            "unmanaged-devices=interface-name:cali*;interface-name:tunl* below [keyfile] in \
             /etc/NetworkManager/conf.d/tortie.conf, then systemctl reload NetworkManager",
        ),
    }
}

fn store(seen: &HostState, found: &mut CheckItems) {
    match &seen.store {
        None => {}
        Some(Ok(store)) => {
            found.ok("store", format!("store {} answers, revision {}", store.describe, store.revision));
            if store.pools == 0 {
                let fix = "tortie ipam configure, or tortie store put a pool: see `tortie ipam pools --help`";
                found.warn("no-pool", "the store has no pool: no workload gets an address", fix);
            }
            if store.ready.as_deref().is_some_and(|ready| ready != "true") {
                let text = format!(
                    "/calico/v1/Ready is `{}`: agents keep what is in force and follow nothing",
                    store.ready.as_deref().unwrap_or_default()
                );
                found.fail("frozen", text, "tortie store put /calico/v1/Ready true, when the store is whole");
            }
        }
        // A SQLite store that the first start makes.
        Some(Err((_, text))) if text.starts_with("there is no store at") => {
            found.warn(
                "store-absent",
                text.clone(),
                "the agent makes it when it starts; or name one with --datastore",
            );
        }
        Some(Err((Exit::Permission, text))) => found.skip("store", text.clone()),
        Some(Err((_, text))) => {
            found.fail(
                "store-away",
                text.clone(),
                "name the right one with --datastore (env TORTIE_DATASTORE)",
            );
        }
    }
}

fn agent(seen: &HostState, found: &mut CheckItems) {
    if seen.group {
        found.ok("group", "group tortie is there: its members may ask the agent");
    } else {
        found.warn(
            "group",
            "there is no group tortie: only root may ask the agent",
            "groupadd --system tortie",
        );
    }
    match &seen.agent {
        Some(Ok(status)) => {
            let text = format!("agent {} runs: {}: {}", status.version, status.verdict, status.summary);
            if status.verdict == "ready" {
                found.ok("agent", text);
            } else {
                found.warn("agent", text, "tortie status");
            }
        }
        Some(Err((Exit::Permission, text))) => {
            found.warn("agent", text.clone(), "usermod -aG tortie USER, then log in again");
        }
        _ => found.ok("agent", "no agent runs yet"),
    }
    match seen.socket {
        Some(socket) if !socket.is_socket => {
            found.fail(
                "socket",
                "the agent's socket path is taken by another kind of file",
                "remove it, or --socket",
            );
        }
        Some(socket) if socket.mode & 0o007 != 0 => {
            let text = format!("anybody may ask the agent: its socket has mode {:o}", socket.mode);
            found.warn("socket", text, "chmod 0660 it, or start the agent again");
        }
        Some(socket) if seen.group && !socket.of_group && matches!(&seen.agent, Some(Ok(_))) => {
            found.warn(
                "socket",
                "the agent's socket does not belong to group tortie",
                "systemctl restart tortie",
            );
        }
        _ => {}
    }
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
