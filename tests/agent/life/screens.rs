//! Agreed output of each command: text as in tests/agent/golden, JSON by the published schema.
//! `TORTIE_GOLDEN=1 cargo test --workspace --test agent screens` rewrites the texts.
//!
//! The commands are taken from the parser of the command line: a command without an answer here, without a
//! schema or without an error case fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use clap::CommandFactory;
use serde_json::json;

use super::mask::mask;
use crate::common::hosts::{Hosts, PATIENCE, Plan, TORTIE, lab_data, poll_until, stderr, stdout, within};
use crate::common::schema::Published;

/// One run on host 1.
struct Run {
    /// The command as named in `commands` of the schema.
    command: &'static str,
    /// Its arguments.
    words: &'static [&'static str],
    exit: i32,
    see: See,
}

/// Part of the output that is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum See {
    /// The text, and the JSON of another run.
    Both,
    /// The text only: a second run would find the work done.
    Text,
    /// The JSON only, since the text depends on the machine or on earlier runs.
    Json,
    /// The error as JSON.
    Error,
}

const fn both(command: &'static str, words: &'static [&'static str]) -> Run {
    Run { command, words, exit: 0, see: See::Both }
}

const fn no(command: &'static str, words: &'static [&'static str]) -> Run {
    Run { command, words, exit: 1, see: See::Both }
}

/// A value of the lab's store cannot be read.
const fn partial(command: &'static str, words: &'static [&'static str]) -> Run {
    Run { command, words, exit: 6, see: See::Both }
}

const fn text(command: &'static str, words: &'static [&'static str]) -> Run {
    Run { command, words, exit: 0, see: See::Text }
}

const fn json_of(command: &'static str, words: &'static [&'static str], exit: i32) -> Run {
    Run { command, words, exit, see: See::Json }
}

const fn error(exit: i32, command: &'static str, words: &'static [&'static str]) -> Run {
    Run { command, words, exit, see: See::Error }
}

/// The exit status depends on the machine or the moment.
const ANY: i32 = -1;
/// Socket without an agent.
const AWAY: &str = "--socket=/run/none.sock";
const STORELESS: &str = "--datastore=sqlite:/run/none.db";

const RUNS: &[Run] = &[
    // Commands that show state.
    both("status", &[]),
    text("status", &["-o", "wide"]),
    json_of("status", &["--all-nodes"], ANY),
    both("bgp peers", &[]),
    text("bgp peers", &["-o", "wide"]),
    json_of("bgp peers", &["--all-nodes"], ANY),
    both("bgp peers", &["--offline"]),
    both("bgp peer", &["host2"]),
    both("bgp ranges", &[]),
    both("bgp routes", &[]),
    both("bgp routes", &["--from", "host2"]),
    both("bgp routes", &["--to", "172.30.0.254"]),
    both("route list", &[]),
    both("route get", &["10.244.2.1"]),
    both("endpoint list", &[]),
    both("endpoint show", &["lab/web1/eth1"]),
    both("policy list", &["--all"]),
    both("policy show", &["web"]),
    both(
        "policy trace",
        &["--from", "lab/web1/eth1", "--to", "10.244.2.1", "--proto", "tcp", "--dport", "80"],
    ),
    no("policy trace", &["--from", "10.244.2.1", "--to", "lab/web1/eth1", "--proto", "tcp", "--dport", "22"]),
    both("why peer", &["host2"]),
    no("why peer", &["10.9.9.9"]),
    both("why route", &["10.244.2.0/26"]),
    both("why route", &["10.244.1.0/26", "--to", "172.30.0.254"]),
    no("why route", &["10.244.2.0/26", "--to", "host2"]),
    json_of("why route", &["10.244.1.0/26", "--to", "172.30.0.254", "--offline"], 6),
    json_of("why route", &["10.244.2.0/26", "--kernel", "--offline", "--route", "{\"source\":\"bgp\"}"], 6),
    both("why packet", &["--from", "lab/web1/eth1", "--to", "10.244.2.1", "--proto", "icmp"]),
    both("why ip", &["10.244.1.1"]),
    both("why drop", &[]),
    both("history peer", &["host2"]),
    both("history route", &["10.244.2.0/26"]),
    json_of("history endpoint", &["lab/web1/eth1"], 0),
    json_of("history change", &["c-1"], 0),
    json_of("history", &[], 0),
    both("diff", &[]),
    both("ipam pools", &[]),
    text("ipam pools", &["-o", "wide"]),
    both("ipam blocks", &[]),
    text("ipam blocks", &["-o", "wide"]),
    both("ipam show", &["10.244.1.1"]),
    no("ipam show", &["10.244.1.9"]),
    both("ipam show", &["10.244.2.0/26"]),
    both("ipam configure", &[]),
    json_of("ipam check", &["--store-only"], 1),
    both("store ls", &["/calico/bgp/v1/global/"]),
    both("store get", &["/calico/v1/Ready"]),
    partial("store project", &[]),
    both("store key", &["/calico/v1/Ready"]),
    both("store key", &["/calico/resources/v3/projectcalico.org/widgets/a"]),
    both("store name workload-endpoint", &["--orchestrator", "k8s", "--pod", "web-1", "--endpoint", "eth0"]),
    both("store name workload-endpoint", &["--orchestrator", "cni", "--endpoint", "eth0"]),
    no("store validate", &[]),
    json_of("store export", &["--redact"], 0),
    json_of("store export", &["--cache"], 0),
    both("selector eval", &["--labels", "{\"app\":\"db\"}", "app == 'db'"]),
    no("selector eval", &["app == 'db'"]),
    both("selector eval", &["--labels", "{\"app\":\"db\"}", "app starts with 'd'"]),
    both("selector match", &["app == 'web1'"]),
    no("selector match", &["app == 'nothing'"]),
    json_of("doctor", &[], ANY),
    json_of("diags", &["/run/diags.tar.gz"], 0),
    json_of("diags", &["/run/diags.tar.gz", AWAY], 6),
    json_of("diags", &["/run/journal.tar.gz"], 0),
    both("replay", &["/run/journal.tar.gz"]),
    text("replay", &["/run/journal.tar.gz", "--why", "route", "10.244.1.0/26"]),
    json_of("replay", &["/run/journal.tar.gz", "--why", "peer", "host2"], ANY),
    both("version", &[]),
    json_of("completion", &["bash"], 0),
    json_of("man", &[], 0),
    json_of("man", &["/run/man"], 0),
    json_of("bgp mrt show", &["/run/table.mrt"], 0),
    json_of("bgp mrt show", &["/run/table.mrt", "--summary"], 0),
    json_of("migrate check", &["--state-dir", "/run/migrate"], ANY),
    json_of("migrate plan", &["--state-dir", "/run/migrate"], ANY),
    json_of("migrate data", &[], ANY),
    // Commands that change state.
    text("log level", &["all:debug"]),
    json_of("log level", &["--reset"], 0),
    text("bgp reset", &["host2", "--soft-in"]),
    json_of("bgp reset", &["host2", "--soft-out"], 0),
    both("bgp drain", &["host2"]),
    both("bgp drain", &["host2", "--undo"]),
    text("diff", &["--hold", "10m"]),
    json_of("diff", &["--repair"], 0),
    text("ipam pool create", &["10.7.0.0/24"]),
    json_of("ipam pool create", &["10.8.0.0/24"], 0),
    both("ipam pool disable", &["10.7.0.0/24"]),
    both("ipam pool enable", &["10.7.0.0/24"]),
    text("ipam claim", &["10.7.0.0/26"]),
    json_of("ipam claim", &["10.7.0.0/26"], 0),
    text("ipam assign", &["--ip", "10.7.0.1", "--handle", "golden"]),
    json_of("ipam assign", &["--ip", "10.7.0.2", "--handle", "golden"], 0),
    no("ipam check", &["--store-only"]),
    text("ipam release", &["--ip", "10.7.0.1"]),
    json_of("ipam release", &["--handle", "golden"], 0),
    json_of("ipam release", &["--from-check"], 1),
    text("ipam unclaim", &["10.7.0.0/26"]),
    json_of("ipam claim", &["10.8.0.0/26"], 0),
    json_of("ipam unclaim", &["10.8.0.0/26"], 0),
    text("ipam pool delete", &["10.7.0.0/24"]),
    json_of("ipam pool delete", &["10.8.0.0/24"], 0),
    text("store put", &["/calico/v1/config/LogPrefix", "yes"]),
    json_of("store put", &["/calico/v1/config/LogPrefix", "no"], 0),
    both("store put", &["/calico/v1/policy/profile/lab/rules", "{}", "--dry-run", "dataplane"]),
    text("store rm", &["/calico/v1/config/LogPrefix"]),
    json_of("store rm", &["/calico/v1/policy/profile/lab/rules", "--dry-run", "dataplane"], 0),
    json_of(
        "store put",
        &[
            "/calico/bgp/v1/host/host1/peer_v4/10.99.0.77",
            r#"{"ip":"10.99.0.77","as_num":"65077"}"#,
            "--dry-run",
            "dataplane",
        ],
        0,
    ),
    text("store import", &["/run/import.json"]),
    json_of("store import", &["/run/import.json"], 0),
    both("store accept", &[]),
    both("node list", &[]),
    text("node list", &["-o", "wide"]),
    both("node show", &["host1"]),
    both("node settings", &["host1", "--changed"]),
    text("node delete", &["host8"]),
    json_of("node delete", &["host9", "--force"], 0),
    both("cni install", &["--bin-dir", "/run/cni", "--conf-dir", "/run/net.d"]),
    // Commands that fail.
    error(3, "status", &[AWAY]),
    error(2, "top", &[]),
    error(2, "status", &["--nonsense"]),
    error(1, "bgp peer", &["nobody"]),
    error(1, "bgp reset", &["nobody"]),
    error(2, "bgp reset", &[]),
    error(1, "bgp drain", &["nobody"]),
    error(3, "bgp ranges", &[AWAY]),
    error(3, "bgp peers", &[AWAY]),
    error(2, "bgp peers", &["--offline", STORELESS]),
    error(1, "bgp routes", &["192.0.2.0/24"]),
    error(1, "bgp routes", &["--from", "nobody"]),
    error(2, "bgp routes", &["--within", "x"]),
    error(2, "bgp mrt show", &["/run/none.mrt"]),
    error(2, "bgp mrt show", &["/run/table.gz"]),
    error(2, "bgp mrt show", &["/run/bad.mrt"]),
    error(2, "bgp mrt dump", &["/run/none/x.mrt"]),
    error(7, "bgp mrt replay", &["/run/table.mrt", "--to", "10.1.2.3", "--as", "65000"]),
    error(
        2,
        "bgp mrt replay",
        &["/run/table.mrt", "--to", "127.0.0.1:1", "--as", "65000", "--from", "192.0.2.1"],
    ),
    error(3, "bgp mrt replay", &["/run/table.mrt", "--to", "127.0.0.1:1", "--as", "65000"]),
    error(3, "bgp mrt dump", &["/run/x.mrt", AWAY]),
    error(3, "bgp mrt updates", &["/run/x.mrt", AWAY]),
    error(2, "bgp mrt replay", &["/run/none.mrt", "--to", "127.0.0.1:1", "--as", "64512"]),
    error(2, "route list", &["somewhere"]),
    error(1, "route get", &["2001:db8::1"]),
    error(1, "endpoint show", &["nobody"]),
    error(3, "endpoint list", &[AWAY]),
    error(1, "policy show", &["nobody"]),
    error(3, "policy list", &[AWAY]),
    error(1, "policy trace", &["--from", "x", "--to", "y", "--proto", "tcp"]),
    error(1, "why peer", &["nobody"]),
    error(2, "why route", &["10.0.0.0/33"]),
    error(2, "why route", &["10.0.0.0/26", "--offline"]),
    error(2, "why route", &["10.0.0.0/26", "--kernel", "--offline", "--route", "[]"]),
    error(
        2,
        "why route",
        &["10.0.0.0/26", "--kernel", "--offline", "--route", "{\"prefix\":\"10.0.1.0/26\"}"],
    ),
    error(1, "why packet", &["--from", "x", "--to", "y", "--proto", "tcp"]),
    error(2, "why ip", &["x"]),
    error(2, "why drop", &["--since", "1w"]),
    error(3, "history", &[AWAY]),
    error(3, "history peer", &["x", AWAY]),
    error(3, "history route", &["10.0.0.0/8", AWAY]),
    error(3, "history endpoint", &["x", AWAY]),
    error(3, "history change", &["c-1", AWAY]),
    error(3, "monitor", &[AWAY]),
    error(3, "diff", &[AWAY]),
    error(2, "diff", &["--hold", "2h"]),
    error(2, "ipam pools", &[STORELESS]),
    error(1, "ipam blocks", &["--pool", "10.1.0.0/16"]),
    error(1, "ipam show", &["10.1.0.0/26"]),
    error(2, "ipam assign", &["--ip", "192.0.2.1"]),
    error(1, "ipam assign", &["--ip", "10.244.1.1"]),
    error(2, "ipam assign", &["--num4", "0"]),
    error(2, "ipam assign", &["--ip", "10.244.1.9", "--pool", "10.9.0.0/16"]),
    error(2, "ipam assign", &["--num4", "1", "--pool", "fd00::/64"]),
    error(1, "ipam release", &["--handle", "nobody"]),
    error(7, "ipam release", &["--ip", "10.244.1.1"]),
    error(7, "ipam unclaim", &["10.244.1.0/26"]),
    error(7, "store rm", &["/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26"]),
    error(2, "status", &["--node", "host2"]),
    error(2, "ipam release", &["--from-check", "/run/import.json"]),
    error(2, "ipam claim", &["192.0.2.0/26"]),
    error(1, "ipam claim", &["10.244.2.0/26"]),
    error(1, "ipam release", &["--ip", "10.244.1.50"]),
    error(1, "ipam unclaim", &["10.244.2.0/26"]),
    error(2, "ipam configure", &["--strict-affinity", "perhaps"]),
    error(2, "ipam check", &[STORELESS]),
    error(1, "ipam pool create", &["10.244.0.0/16"]),
    error(2, "ipam pool create", &["10.244.0.0/17"]),
    error(2, "ipam pool create", &["10.99.0.0/24", "--block-size", "8"]),
    error(2, "ipam pool disable", &["10.9.0.0/16"]),
    error(1, "ipam pool disable", &["10.1.0.0/16"]),
    error(1, "ipam pool enable", &["10.1.0.0/16"]),
    error(7, "ipam pool delete", &["10.244.0.0/16"]),
    error(2, "node list", &[STORELESS]),
    error(1, "node show", &["nobody"]),
    error(2, "node settings", &[STORELESS]),
    error(7, "node delete", &["host2"]),
    error(2, "store ls", &["--datastore=mysql://x"]),
    error(1, "store get", &["/calico/none"]),
    error(2, "store put", &["/calico/bgp/v1/global/as_num", "x"]),
    error(2, "store put", &["/calico/v1/config/LogPrefx", "x"]),
    error(1, "store rm", &["/calico/none"]),
    error(2, "store watch", &[STORELESS]),
    error(2, "store import", &["/run/none.json"]),
    error(2, "store import", &["/run/bad.json"]),
    error(2, "store export", &[STORELESS]),
    error(1, "store export", &["--cache", "/run/none.json"]),
    error(2, "store project", &[STORELESS]),
    error(2, "store key", &["--nonsense"]),
    error(2, "store name workload-endpoint", &["--nonsense"]),
    error(2, "store validate", &[STORELESS]),
    error(3, "store accept", &[AWAY]),
    error(2, "selector eval", &["role == 'db"]),
    error(2, "selector eval", &["--grammar", "v1", "role contains 'db'"]),
    error(2, "selector match", &["role == 'db"]),
    error(2, "selector eval", &["--labels", "{", "all()"]),
    error(2, "agent", &["--as", "0"]),
    error(2, "cni install", &["--file", "x"]),
    error(2, "cni conflist", &["--name", "-"]),
    error(2, "cni status", &["--name", "-"]),
    error(2, "completion", &["nonsense"]),
    error(3, "log level", &["all:debug", AWAY]),
    error(2, "log level", &["nonsense"]),
    error(2, "lab up", &["/run/none.clab.yml"]),
    error(2, "lab down", &["/run/none.clab.yml"]),
    error(2, "lab exec", &["/run/none.clab.yml", "x", "--", "true"]),
    error(2, "demo", &["--hosts", "1"]),
    error(1, "demo sh", &["nowhere"]),
    error(2, "docker", &["--nonsense"]),
    error(2, "doctor", &["--nonsense"]),
    error(6, "diags", &["/run/none/x"]),
    error(2, "replay", &["/run/none/x"]),
    error(2, "replay", &["/etc/hostname"]),
    error(2, "replay", &["/etc/hostname", "--why", "flows", "x"]),
    error(2, "replay", &["/etc/hostname", "--why", "peer", "host2", "--to", "host3"]),
    error(2, "man", &["/dev/null/x"]),
    error(1, "schema", &["Nonsense"]),
    error(1, "schema", &["agent"]),
    error(2, "version", &["--nonsense"]),
    error(7, "purge", &[]),
    error(2, "migrate check", &["--route-protocol", "4"]),
    error(2, "migrate plan", &["--route-metric", "0"]),
    error(2, "migrate data", &["--write"]),
    error(1, "migrate adopt", &["--state-dir", "/run/migrate"]),
    error(1, "migrate rollback", &["--state-dir", "/run/migrate"]),
    error(1, "kurma setup", &[]),
    error(1, "kurma add", &["/run/none", "x"]),
    error(1, "kurma del", &["/run/none", "x"]),
];

/// Commands whose JSON is checked by another test, commands without JSON, and commands that cannot fail here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("demo", "tests/cli/demo.rs"),
    ("lab up", "tests/cli/lab.rs"),
    ("lab down", "tests/cli/lab.rs, its text"),
    ("lab exec", "tests/cli/lab.rs"),
    ("purge", "tests/agent/life/process/stop_and_purge.rs: it is refused while an agent runs"),
    ("migrate adopt", "tests of the move: it needs Calico's daemons"),
    ("migrate rollback", "tests of the move: it needs Calico's daemons"),
    ("cni status", "tests/plugins/engines: it needs a runtime's network"),
];
const NEVER_REFUSE: &[(&str, &str)] = &[
    ("cni plugin", "its errors are those of the CNI specification, on standard output"),
    ("kurma setup-wait", "it is `kurma setup` that stays"),
];

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent/golden")
}

/// Collects every executable command by its words.
fn leaves(command: &clap::Command, path: &str, out: &mut BTreeSet<String>) {
    let below: Vec<_> =
        command.get_subcommands().filter(|s| !s.is_hide_set() && s.get_name() != "help").collect();
    if !path.is_empty() && (below.is_empty() || !command.is_subcommand_required_set()) {
        out.insert(path.to_owned());
    }
    for sub in below {
        leaves(sub, format!("{path} {}", sub.get_name()).trim(), out);
    }
}

fn data() -> BTreeMap<String, String> {
    let mut data = lab_data(2, true);
    let mut put = |key: &str, value: &str| {
        data.insert(format!("/calico/{key}"), value.to_owned());
    };
    put("bgp/v1/global/peer_range/10.98.0.0-24", r#"{"as_num":"65001"}"#);
    put("v1/host/host8/metadata", "{}");
    put("v1/host/host9/metadata", "{}");
    put(
        "v1/policy/tier/default/policy/web",
        r#"{"selector":"app == 'web1'","order":10,
            "inbound_rules":[{"action":"allow","protocol":"tcp","dst_ports":[80]},{"action":"deny","protocol":"tcp"}],
            "outbound_rules":[{"action":"allow"}]}"#,
    );
    data
}

fn run(hosts: &Hosts, run: &Run, json: bool) -> Output {
    let mut all = vec![
        "env",
        "-u",
        "COLUMNS",
        "TORTIE_DATASTORE=sqlite:/store/store.db",
        "TORTIE_NODE=host1",
        "TORTIE_SOCKET=/run/tortie/tortie.sock",
        TORTIE,
    ];
    all.extend(run.command.split(' '));
    if json {
        all.extend(["-o", "json"]);
    }
    all.extend(run.words);
    hosts.lab.exec("host1", &all).unwrap()
}

/// Starts a lab with objects to show.
fn up() -> Option<Hosts> {
    let plan = Plan { hosts: 2, router: true, data: Some(data()), later: vec![1, 2], ..Plan::default() };
    let hosts = Hosts::up(plan)?;
    hosts.put("/calico/v1/ipam/v4/pool/10.9.0.0-16", "{");
    let script = "ip link add cali1 type veth peer name w1; ip link set cali1 up; ip link set w1 up
        echo '{\"/calico/v1/config/LogPrefix\": \"yes\"}' > /run/import.json
        echo '{\"/calico/bgp/v1/global/as_num\": \"x\", \"no\": \"slash\", \"/calico/v1/x\": 1}' > /run/bad.json
        printf '\\037\\213x' > /run/table.gz; printf '%064d' 0 > /run/bad.mrt";
    let prepared = hosts.lab.exec("host1", &["sh", "-ec", script]).unwrap();
    assert!(prepared.status.success(), "{prepared:?}");
    (1..=2).for_each(|host| hosts.start_agent(host));
    hosts.until_sessions(2);
    hosts.until_routes(
        1,
        &["10.244.1.0/26 blackhole", "10.244.1.1", "10.244.2.0/26", "169.254.1.1", "default"],
    );
    hosts.until(1, "the first look around", |status| {
        status["ready"] == true
            && status["policy"]["inSync"] == true
            && status["bgp"]["gracefulRestart"] == "idle"
            && status["notes"].to_string().contains("own-only-hint")
    });
    let dump = Run { command: "bgp mrt dump", words: &["/run/table.mrt"], exit: 0, see: See::Text };
    within(PATIENCE, "a table is recorded", || {
        let output = run(&hosts, &dump, false);
        if output.status.success() { Ok(()) } else { Err(stderr(&output)) }
    });
    Some(hosts)
}

#[test]
fn screens_and_answers_are_as_agreed() {
    let published = Published::read();
    let mut root = tortie::cli::Cli::command();
    root.build();
    let mut commands = BTreeSet::new();
    leaves(&root, "", &mut commands);
    let mut wrong = Vec::new();
    let forms = published.commands();
    for command in commands.iter().filter(|command| !forms.contains_key(*command)) {
        wrong.push(format!("`{command}` is not in `commands` of docs/schema/v1.json"));
    }
    for command in forms.keys().filter(|command| !commands.contains(*command)) {
        wrong.push(format!("docs/schema/v1.json has `{command}`, which is no command"));
    }
    let seen = |see: fn(See) -> bool| -> BTreeSet<&str> {
        RUNS.iter().filter(|run| see(run.see)).map(|run| run.command).collect()
    };
    let answered = seen(|see| matches!(see, See::Both | See::Json));
    let refused = seen(|see| see == See::Error);
    let in_list = |list: &[(&str, &str)], command: &str| list.iter().any(|(name, _)| *name == command);
    for command in &commands {
        let answers = matches!(forms.get(command).map(String::as_str), Some("document" | "lines"));
        let live = matches!(command.as_str(), "monitor" | "store watch");
        if answers && !live && !answered.contains(command.as_str()) && !in_list(ELSEWHERE, command) {
            wrong.push(format!("no run of `{command}` has its JSON looked at"));
        }
        if !refused.contains(command.as_str()) && !in_list(NEVER_REFUSE, command) {
            wrong.push(format!("no run of `{command}` is refused"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let Some(hosts) = up() else { return };
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for one in RUNS {
        if one.command == "node list" && one.see == See::Both {
            status_keys(&hosts);
        }
        let place = format!("`tortie {} {}`", one.command, one.words.join(" "));
        let of = one.command.split(' ').next().unwrap();
        if matches!(one.see, See::Both | See::Text) {
            let output = run(&hosts, one, false);
            if output.status.code() != Some(one.exit) {
                wrong.push(format!("{place}: {output:?}"));
            }
            let shown = lasting(&mask(&format!("{}{}", stdout(&output), stderr(&output))));
            let file = texts.entry(of.to_owned()).or_default();
            let words = [&[one.command], one.words].concat().join(" ");
            let _ = write!(file, "$ tortie {words}\n{shown}[exit {}]\n\n", one.exit);
        }
        if one.see == See::Text {
            continue;
        }
        let output = run(&hosts, one, true);
        if one.exit != ANY && output.status.code() != Some(one.exit) {
            wrong.push(format!("{place} -o json: {output:?}"));
            continue;
        }
        if one.see == See::Error {
            errors(&mut texts, one, &published, &output)
                .unwrap_or_else(|e| wrong.push(format!("{place}: {e}")));
        } else {
            let answers = published.check_output(one.command, &output.stdout);
            wrong.extend(answers.err().map(|e| format!("{place}: {e}")));
            // The summary of `doctor` depends on the machine.
            if one.see == See::Json && !output.stderr.is_empty() && one.exit > 0 {
                errors(&mut texts, one, &published, &output)
                    .unwrap_or_else(|e| wrong.push(format!("{place}: {e}")));
            }
        }
    }
    wrong.extend(live(&hosts, &published).err());
    if std::env::var_os("TORTIE_GOLDEN").is_some() {
        let _ = std::fs::remove_dir_all(golden());
        std::fs::create_dir_all(golden()).unwrap();
        for (name, text) in &texts {
            std::fs::write(golden().join(format!("{name}.txt")), text).unwrap();
        }
    }
    for (name, text) in &texts {
        let agreed = std::fs::read_to_string(golden().join(format!("{name}.txt"))).unwrap_or_default();
        let (agreed, text): (Vec<&str>, Vec<&str>) =
            (agreed.split("$ tortie ").collect(), text.split("$ tortie ").collect());
        for (at, part) in text.iter().enumerate().filter(|(at, part)| agreed.get(*at) != Some(*part)) {
            wrong.push(format!("{name}.txt:\n--- is\n{part}--- agreed\n{}", agreed.get(at).unwrap_or(&"")));
        }
        if agreed.len() > text.len() {
            wrong.push(format!("{name}.txt has more than is run"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ; TORTIE_GOLDEN=1 cargo test --workspace --test agent screens, then look at the difference:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Removes lines with the number of best paths that changed at once, which depends on the order of sessions.
fn lasting(text: &str) -> String {
    text.split_inclusive('\n')
        .filter(|line| !(line.contains("best path") && line.contains(" changed")))
        .collect()
}

/// Waits until both hosts have reported all their sessions as up in their status keys, which takes a moment.
fn status_keys(hosts: &Hosts) {
    let list = Run { command: "node list", words: &[], exit: 0, see: See::Json };
    within(PATIENCE, "status keys", || {
        let text = stdout(&run(hosts, &list, true));
        if text.matches("\"sessionsUp\": 2").count() == 2 { Ok(()) } else { Err(text) }
    });
}

/// Records an error case.
fn errors(
    texts: &mut BTreeMap<String, String>,
    one: &Run,
    published: &Published,
    output: &Output,
) -> Result<(), String> {
    let (code, text) = published.error(&output.stderr)?;
    let file = texts.entry("errors".to_owned()).or_default();
    let words = [&[one.command], one.words].concat().join(" ");
    let shown = mask(&format!("{text}\n"));
    let _ = write!(file, "$ tortie {words}\n{code}: {shown}[exit {}]\n\n", one.exit);
    Ok(())
}

/// Checks commands that run until they are ended.
fn live(hosts: &Hosts, published: &Published) -> Result<(), String> {
    for (command, words) in [("monitor", &[][..]), ("store watch", &["/calico/v1/ipam/v4/pool/"])] {
        let begin = ["env", "TORTIE_DATASTORE=sqlite:/store/store.db", TORTIE, "-o", "json"];
        let words: Vec<&str> =
            begin.into_iter().chain(command.split(' ')).chain(words.iter().copied()).collect();
        let spawned = hosts.lab.spawn("host1", &words, |c| {
            c.stdin(Stdio::null()).stdout(Stdio::piped());
        });
        let mut child = spawned.map_err(|e| e.to_string())?;
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        // What it prints is about changes since it follows, and nothing shows when that begins.
        let mut round = 0;
        let first = poll_until(PATIENCE, &format!("`{command}` says something"), || {
            round += 1;
            let value = json!({ "cidr": "10.6.0.0/24", "masquerade": round % 2 == 0 });
            hosts.put("/calico/v1/ipam/v4/pool/10.6.0.0-24", &value.to_string());
            lines.recv_timeout(Duration::from_millis(700)).map_err(|e| e.to_string())
        });
        let _ = child.kill();
        let _ = child.wait();
        let said: Vec<String> = std::iter::once(first?).chain(lines.iter()).collect();
        published.check_output(command, said.join("\n").as_bytes())?;
    }
    Ok(())
}
