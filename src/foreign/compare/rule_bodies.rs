//! Compares the rules of a policy or profile: converts a chain of the store and a chain of Felix into one
//! form.
//!
//! Felix writes most rules of the store as one kernel rule, or as two for `allow` (a mark and a return).
//! Where it needs more rules (many networks or ports), or a rule has a match that is unknown here, the chain
//! is not compared.

use std::collections::BTreeSet;

use tortie_config::key::IpFamily;
use tortie_config::resource::{Action, Protocol};
use tortie_net::Cidr;

use crate::foreign::felix::{id_of_set, set_id};
use crate::foreign::types::{FelixRule, FelixTable};
use tortie_engine::policy::{End, Rule};

/// Maximum number of ports in one `multiport` match; a range takes two places.
const PORTS: usize = 15;

/// One rule in the common form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Line {
    /// Each match as text.
    matches: BTreeSet<String>,
    does: RuleAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum RuleAction {
    #[default]
    Allow,
    Deny,
    Log,
    Pass,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let does = match self.does {
            RuleAction::Allow => "allow",
            RuleAction::Deny => "deny",
            RuleAction::Log => "log",
            RuleAction::Pass => "pass",
        };
        f.write_str(does)?;
        self.matches.iter().try_for_each(|one| write!(f, " {one}"))
    }
}

/// Converts rules of the store for one family; `None` if Felix writes them in a form that is not supported
/// here.
pub(super) fn of_store(rules: &[Rule], v4: bool) -> Option<Vec<Line>> {
    let mut lines = Vec::new();
    for rule in rules {
        if let Some(line) = one_of_store(rule, v4)? {
            lines.push(line);
        }
    }
    Some(lines)
}

/// Converts one rule; `Some(None)` if it does not apply to this family.
fn one_of_store(rule: &Rule, v4: bool) -> Option<Option<Line>> {
    let other = match rule.family {
        Some(IpFamily::V4) => !v4,
        Some(IpFamily::V6) => v4,
        None => false,
    };
    let icmp = |wanted: u8| rule.protocol.is_some_and(|protocol| protocol.number() == wanted);
    if other || icmp(if v4 { 58 } else { 1 }) {
        return Some(None);
    }
    let mut matches = BTreeSet::new();
    let protocol = |matches: &mut BTreeSet<String>, not: &str, protocol: Option<Protocol>| {
        matches.extend(protocol.map(|protocol| format!("{not}proto {}", protocol.number())));
    };
    protocol(&mut matches, "", rule.protocol);
    protocol(&mut matches, "!", rule.not_protocol);
    for (side, end) in [("src", &rule.src), ("dst", &rule.dst)] {
        match one_end(&mut matches, side, end, v4)? {
            true => {}
            false => return Some(None),
        }
    }
    for (not, icmp) in [("", rule.icmp), ("!", rule.not_icmp)] {
        if let Some(icmp) = icmp {
            let code = icmp.code().map_or_else(String::new, |code| format!("/{code}"));
            matches.insert(format!("{not}icmp {}{code}", icmp.icmp_type()));
        }
    }
    let does = match rule.action {
        Action::Allow => RuleAction::Allow,
        Action::Deny => RuleAction::Deny,
        Action::Log => RuleAction::Log,
        Action::NextTier => RuleAction::Pass,
    };
    Some(Some(Line { matches, does }))
}

/// Adds the matches of one side of a rule; `Some(false)` if its networks are of the other family, `None` if
/// the form is not supported.
fn one_end(matches: &mut BTreeSet<String>, side: &str, end: &End, v4: bool) -> Option<bool> {
    for (not, sets) in [("", &end.sets), ("!", &end.not_sets)] {
        matches.extend(sets.iter().map(|id| format!("{not}{side} set {}", set_id(id.selector()))));
    }
    let mut nets = 0;
    for (not, all) in [("", &end.nets), ("!", &end.not_nets)] {
        let own: Vec<&Cidr> = all.iter().filter(|net| net.is_v4() == v4).collect();
        if own.is_empty() && !all.is_empty() {
            return Some(false);
        }
        nets += own.len();
        matches.extend(own.iter().map(|net| format!("{not}{side} {net}")));
    }
    // An iptables rule has at most one network per side.
    if nets > 1 {
        return None;
    }
    for (not, ports) in [("", &end.ports), ("!", &end.not_ports)] {
        let places: usize = ports.iter().map(|range| if range.first() == range.last() { 1 } else { 2 }).sum();
        if places > PORTS {
            return None;
        }
        if !ports.is_empty() {
            let list: BTreeSet<(u16, u16)> =
                ports.iter().map(|range| (range.first(), range.last())).collect();
            matches.insert(format!("{not}{side} ports {list:?}"));
        }
    }
    Some(true)
}

/// Returns the mark that Felix sets for the action `pass`: its endpoint chains skip further policies if the
/// mark is set.
pub(super) fn pass_mark(table: &FelixTable) -> Option<u32> {
    let skips = |rule: &&FelixRule| {
        rule.target().is_some_and(|t| t.starts_with("cali-pi-") || t.starts_with("cali-po-"))
    };
    let mut found = table.chains.values().flatten().filter(skips).filter_map(|rule| {
        let at = rule.words.iter().position(|word| word == "--mark")?;
        match marks(rule.words.get(at + 1)?)? {
            (0, mask) => Some(mask),
            _ => None,
        }
    });
    found.next()
}

/// Converts a chain of Felix; `None` if it contains a match or action that is not supported here.
pub(super) fn of_felix(rules: &[FelixRule], pass: Option<u32>, v4: bool) -> Option<Vec<Line>> {
    let mut lines = Vec::new();
    let mut rest = rules.iter().peekable();
    while let Some(rule) = rest.next() {
        let parts = read(rule, v4)?;
        if parts.condition.is_some() {
            return None;
        }
        let does = match (parts.target.as_deref()?, parts.sets_mark) {
            ("MARK", Some((value, mask))) if value == mask && value != 0 => {
                // `allow` and `pass` end the chain: the next rule returns if the mark is set.
                if let Some(next) = rest.next() {
                    let next = read(next, v4)?;
                    let returns = next.target.as_deref() == Some("RETURN")
                        && next.matches.is_empty()
                        && next.condition == Some((value, mask));
                    if !returns {
                        return None;
                    }
                }
                if Some(mask) == pass { RuleAction::Pass } else { RuleAction::Allow }
            }
            ("DROP", None) => RuleAction::Deny,
            ("LOG", None) => RuleAction::Log,
            _ => return None,
        };
        lines.push(Line { matches: parts.matches, does });
    }
    Some(lines)
}

#[derive(Debug, Default)]
struct FelixRuleParts {
    matches: BTreeSet<String>,
    target: Option<String>,
    /// Value and mask of a `-m mark` match.
    condition: Option<(u32, u32)>,
    sets_mark: Option<(u32, u32)>,
}

fn read(rule: &FelixRule, v4: bool) -> Option<FelixRuleParts> {
    let mut parts = FelixRuleParts::default();
    let mut words = rule.words.iter().map(String::as_str);
    let mut not = "";
    while let Some(word) = words.next() {
        if word == "!" {
            not = "!";
            continue;
        }
        let negated = std::mem::take(&mut not);
        let one = match word {
            "-m" | "--comment" | "--log-prefix" | "--log-level" => {
                words.next()?;
                continue;
            }
            "-p" => format!("{negated}proto {}", protocol(words.next()?)?),
            "-s" => format!("{negated}src {}", net(words.next()?, v4)?),
            "-d" => format!("{negated}dst {}", net(words.next()?, v4)?),
            "--match-set" => {
                let (name, side) = (words.next()?, words.next()?);
                matches!(side, "src" | "dst").then(|| format!("{negated}{side} set {}", id_of_set(name)))?
            }
            "--dports" | "--dport" => format!("{negated}dst ports {:?}", ports(words.next()?)?),
            "--sports" | "--sport" => format!("{negated}src ports {:?}", ports(words.next()?)?),
            "--icmp-type" | "--icmpv6-type" => format!("{negated}icmp {}", words.next()?),
            "--mark" => {
                parts.condition = Some(marks(words.next()?).filter(|_| negated.is_empty())?);
                continue;
            }
            "--set-xmark" => {
                parts.sets_mark = Some(marks(words.next()?)?);
                continue;
            }
            "-j" => {
                parts.target = Some(words.next()?.to_owned());
                continue;
            }
            _ => return None,
        };
        parts.matches.insert(one);
    }
    Some(parts)
}

fn net(text: &str, v4: bool) -> Option<Cidr> {
    let cidr = match text.contains('/') {
        true => text.parse().ok()?,
        false => Cidr::host(text.parse().ok()?),
    };
    (cidr.is_v4() == v4).then_some(cidr)
}

/// Returns the number of a protocol name, for the names of the data model (`/etc/protocols`).
fn protocol(text: &str) -> Option<u8> {
    Some(match text {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "ipv6-icmp" | "icmpv6" => 58,
        "sctp" => 132,
        "udplite" => 136,
        number => number.parse().ok()?,
    })
}

fn ports(text: &str) -> Option<BTreeSet<(u16, u16)>> {
    let range = |part: &str| match part.split_once(':') {
        Some((first, last)) => Some((first.parse().ok()?, last.parse().ok()?)),
        None => part.parse().ok().map(|port| (port, port)),
    };
    text.split(',').map(range).collect()
}

/// Parses a mark with its mask, such as `0x1000000/0x1000000`.
fn marks(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    Some((number(value)?, number(mask)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::felix::tables;
    use crate::foreign::types::Backend;
    use tortie_engine::policy::SetId;

    /// Converts a chain that is written as `iptables-save` prints those of Felix 2.6.
    fn chain(rules: &str) -> Option<Vec<String>> {
        let rules: String = rules.lines().map(|rule| format!("-A cali-pi-x {rule}\n")).collect();
        let listing = format!(
            "*filter\n:cali-pi-x - [0:0]\n:cali-tw-a - [0:0]\n-A cali-tw-a -m mark --mark 0x0/0x2000000 -j cali-pi-x\n{rules}COMMIT\n"
        );
        let all = tables(Backend::Legacy, true, &listing);
        let lines = of_felix(&all[0].chains["cali-pi-x"], pass_mark(&all[0]), true)?;
        Some(lines.iter().map(ToString::to_string).collect())
    }

    const RETURN: &str = "-m mark --mark 0x1000000/0x1000000 -j RETURN";

    #[test]
    fn both_sides_come_to_one_form() {
        let set = SetId::of(&"role == 'db'".parse().unwrap());
        let ports = |first, last| vec![tortie_config::resource::PortRange::new(first, last).unwrap()];
        let tcp: Protocol = "tcp".parse().unwrap();
        let rules = [
            Rule {
                protocol: Some(tcp),
                src: End { sets: vec![set.clone()], ..End::default() },
                dst: End { ports: ports(80, 80), ..End::default() },
                ..Rule::default()
            },
            Rule {
                action: Action::Deny,
                src: End { not_nets: vec!["10.0.0.0/8".parse().unwrap()], ..End::default() },
                ..Rule::default()
            },
            Rule { family: Some(IpFamily::V6), ..Rule::default() },
            Rule { action: Action::NextTier, ..Rule::default() },
        ];
        let name = format!("cali40{}", set_id(set.selector()));
        let listing = format!(
            "-p tcp -m comment --comment \"cali:x\" -m set --match-set {name} src -m multiport --dports 80 -j MARK --set-xmark \
             0x1000000/0x1000000\n{RETURN}\n! -s 10.0.0.0/8 -j DROP\n-j MARK --set-xmark 0x2000000/0x2000000\n-m mark --mark \
             0x2000000/0x2000000 -j RETURN"
        );
        let ours: Vec<String> = of_store(&rules, true).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(chain(&listing).unwrap(), ours);
        assert_eq!(ours[1..], ["deny !src 10.0.0.0/8", "pass"]);
    }

    #[test]
    fn what_is_not_read_whole_concludes_nothing() {
        for strange in [
            "-m limit --limit 10/min -j DROP",
            "-j MARK --set-xmark 0x0/0x4000000",
            "-m mark --mark 0x4000000/0x4000000 -j DROP",
            "-g cali-elsewhere",
            "-s fd00::1 -j DROP",
        ] {
            assert_eq!(chain(strange), None, "{strange}");
        }
        // No rule returns on the mark.
        assert_eq!(chain("-j MARK --set-xmark 0x1000000/0x1000000\n-j DROP"), None);
        let nets = vec!["10.0.0.0/8".parse().unwrap(), "192.168.0.0/16".parse().unwrap()];
        let many = Rule { src: End { nets, ..End::default() }, ..Rule::default() };
        assert_eq!(of_store(&[many], true), None);
        let six = Rule {
            src: End { nets: vec!["fd00::/8".parse().unwrap()], ..End::default() },
            ..Rule::default()
        };
        assert_eq!(of_store(&[six], true), Some(Vec::new()), "Felix leaves it out");
    }
}
