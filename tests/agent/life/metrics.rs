//! A running agent emits every metric and label that alert rules, dashboards and docs/reference/metrics.md name, and
//! no others; promtool accepts the page and the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Metrics that exist only with their object: BFD, plugins, a limit, a session, rejections.
const CONDITIONAL: &[&str] = &[
    "tortie_bfd_",
    "tortie_bgp_notifications_total",
    "tortie_bgp_peer_hold_margin_ratio",
    "tortie_bgp_peer_prefix_limit",
    "tortie_bgp_peer_tcp_rtt_seconds",
    "tortie_conntrack_",
    "tortie_dataplane_",
    "tortie_denied_flow_",
    "tortie_ipam_assign_seconds",
    "tortie_plugin_",
    "tortie_policy_convergence_seconds",
    "tortie_policy_denied_",
];

/// A metrics page: types by family, and the labels with their values by family.
#[derive(Default)]
struct Page {
    types: BTreeMap<String, String>,
    labels: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

fn family(name: &str) -> &str {
    ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

fn read(text: &str) -> Page {
    let mut page = Page::default();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            page.types.insert(name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') {
            let name = &line[..line.find(['{', ' ']).unwrap()];
            let of = if page.types.contains_key(name) { name } else { family(name) };
            assert!(page.types.contains_key(of), "no head: {line}");
            let known = page.labels.entry(of.to_owned()).or_default();
            for (label, _, value) in matchers(&line[name.len()..]) {
                known.entry(label).or_default().insert(value);
            }
        }
    }
    page
}

/// Parses the leading label matchers of a text: name, operator, value.
fn matchers(text: &str) -> Vec<Matcher> {
    let mut found = Vec::new();
    let Some(mut rest) = text.strip_prefix('{') else { return found };
    while let Some(at) = rest.find(['=', '!', '}']).filter(|at| !rest[*at..].starts_with('}')) {
        let name = rest[..at].trim_matches([',', ' ']).to_owned();
        let quote = rest[at..].find('"').unwrap() + at;
        let end = rest[quote + 1..].find('"').unwrap() + quote + 1;
        found.push((name, rest[at..quote].trim().to_owned(), rest[quote + 1..end].to_owned()));
        rest = &rest[end + 1..];
    }
    found
}

/// Label, operator and value of a matcher.
type Matcher = (String, String, String);

/// Returns the metrics named in a text, each with its matchers.
fn named(text: &str) -> Vec<(String, Vec<Matcher>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("tortie_") {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_ascii_alphanumeric() || "_-./:".contains(c)) {
            continue;
        }
        let end =
            text[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(text.len(), |n| at + n);
        found.push((text[at..end].to_owned(), matchers(&text[end..])));
    }
    found
}

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(crate) fn names_hold(text: &str) {
    let page = read(text);
    let boards = ["node", "cluster", "migration"].map(|name| format!("packaging/grafana/{name}.json"));
    for place in ["packaging/prometheus/tortie.rules.yml".to_owned()].into_iter().chain(boards) {
        // In JSON the quotes of an expression are escaped.
        let text = file(&place).replace("\\\"", "\"");
        assert!(named(&text).len() > 3, "{place} names metrics");
        for (name, wanted) in named(&text) {
            let conditional = CONDITIONAL.iter().any(|start| name.starts_with(start));
            let known = page.labels.get(&name).or_else(|| page.labels.get(family(&name)));
            let Some(known) = known else {
                assert!(conditional, "{place}: {name} is not emitted\n{:?}", page.types.keys());
                continue;
            };
            for (label, operator, value) in wanted {
                if label == "instance" || label == "job" {
                    continue;
                }
                let values =
                    known.get(&label).unwrap_or_else(|| panic!("{place}: {name} has no label {label}"));
                // Each agent has one mode, and this one programs the kernel.
                let elsewhere = name == "tortie_kernel_mode" && value == "observe";
                let there = operator != "=" || elsewhere || values.contains(&value);
                assert!(there, "{place}: {name} has no {label}={value}, but {values:?}");
            }
        }
    }
    let mut documented = BTreeMap::new();
    for line in file("docs/reference/metrics.md").lines() {
        let mut cells = line.split('|').map(str::trim).skip(1);
        if let (Some(name), Some(kind)) = (cells.next(), cells.next())
            && let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`'))
            && name.starts_with("tortie_")
        {
            documented.insert(name.to_owned(), kind.to_owned());
        }
    }
    for (name, kind) in &documented {
        let conditional = CONDITIONAL.iter().any(|start| name.starts_with(start));
        match page.types.get(name) {
            Some(is) => assert_eq!(is, kind, "{name}"),
            None => assert!(conditional, "docs/reference/metrics.md: {name} is not emitted"),
        }
    }
    let own = page.types.keys().filter(|name| name.starts_with("tortie_"));
    let secret: Vec<_> = own.filter(|name| !documented.contains_key(*name)).collect();
    assert!(secret.is_empty(), "not in docs/reference/metrics.md: {secret:?}");
}

fn promtool() -> Option<PathBuf> {
    let found = std::env::var_os("TORTIE_PEERS").map(|dir| Path::new(&dir).join("promtool"));
    let found = found.filter(|path| path.exists());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "promtool is missing (tests/tools/peers.sh unpacks it)");
        eprintln!("skipped: no promtool in TORTIE_PEERS");
    }
    found
}

pub(crate) fn is_valid(text: &str) {
    let Some(tool) = promtool() else { return };
    let mut check = Command::new(tool);
    let mut check =
        check.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn each_alert_fires_when_it_is_meant_to_and_not_otherwise() {
    let Some(tool) = promtool() else { return };
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus");
    for words in [["check", "rules", "tortie.rules.yml"], ["test", "rules", "tortie.rules.test.yml"]] {
        let output = Command::new(&tool).args(words).current_dir(&dir).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let (rules, tests) =
        (file("packaging/prometheus/tortie.rules.yml"), file("packaging/prometheus/tortie.rules.test.yml"));
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(alerts.len(), 28);
    for alert in alerts {
        for what in ["fires", "is quiet"] {
            assert!(tests.contains(&format!("- name: {alert}, {what}\n")), "{alert}, {what}");
        }
    }
}
