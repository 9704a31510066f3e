//! Text form of rules, as printed by `endpoint show`, `policy show`, traces and explanations.

use std::fmt::{self, Write as _};

use tortie_config::key::IpFamily;
use tortie_config::resource::{self, Icmp, PortRange};

use super::rules;
use super::types::{Chain, ChainId, Direction, End, FailClosed, LogPrefix, PortSetId, Rule};

impl Direction {
    /// Returns `inbound` or `outbound`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

impl fmt::Display for ChainId {
    /// Formats the chain as `policy web inbound`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.source, self.direction.as_str())
    }
}

impl fmt::Display for FailClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "there is no such profile, or it has no rules: everything is denied",
            Self::Unreadable => "its value cannot be parsed: everything is denied",
        })
    }
}

impl fmt::Display for Rule {
    /// Formats the rule as `allow tcp from role == "web" to port 80,443`. All listed matches must hold;
    /// values separated by commas are alternatives.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.action.as_str())?;
        if let Some(prefix) = &self.log {
            write!(f, " (logged as `{}`)", prefix.as_str())?;
        }
        match self.family {
            Some(IpFamily::V4) => f.write_str(" IPv4")?,
            Some(IpFamily::V6) => f.write_str(" IPv6")?,
            None => {}
        }
        if let Some(protocol) = self.protocol {
            write!(f, " {protocol}")?;
        }
        if let Some(protocol) = self.not_protocol {
            write!(f, " not {protocol}")?;
        }
        if let Some(icmp) = self.icmp {
            write!(f, " {}", icmp_words(icmp))?;
        }
        if let Some(icmp) = self.not_icmp {
            write!(f, " not ({})", icmp_words(icmp))?;
        }
        for (word, end) in [("from", &self.src), ("to", &self.dst)] {
            let text = end_words(end);
            if !text.is_empty() {
                write!(f, " {word} {text}")?;
            }
        }
        Ok(())
    }
}

fn icmp_words(icmp: Icmp) -> String {
    match icmp.code() {
        Some(code) => format!("type {} code {code}", icmp.icmp_type()),
        None => format!("type {}", icmp.icmp_type()),
    }
}

fn end_words(end: &End) -> String {
    fn list<T: fmt::Display>(items: &[T]) -> String {
        let mut out = String::new();
        for item in items {
            let _ = write!(out, "{}{item}", if out.is_empty() { "" } else { "," });
        }
        out
    }
    let mut parts: Vec<String> = Vec::new();
    parts.extend(end.sets.iter().map(|set| format!("({})", set.selector())));
    parts.extend(end.not_sets.iter().map(|set| format!("not ({})", set.selector())));
    let ports = |ranges: &[PortRange], names: Option<&PortSetId>| {
        let names = names.map(|set| list(set.names())).unwrap_or_default();
        let numbers = list(ranges);
        if numbers.is_empty() || names.is_empty() { numbers + &names } else { format!("{numbers},{names}") }
    };
    let lists = [
        ("", list(&end.nets)),
        ("not ", list(&end.not_nets)),
        ("port ", ports(&end.ports, end.named_ports.as_ref())),
        ("not port ", ports(&end.not_ports, end.not_named_ports.as_ref())),
    ];
    parts.extend(
        lists.iter().filter(|(_, list)| !list.is_empty()).map(|(word, list)| format!("{word}{list}")),
    );
    parts.join(" ")
}

impl Chain {
    /// Compiles rules of the store into a chain, even if no endpoint uses them. `default_prefix` is the
    /// prefix of log rules that have none.
    #[must_use]
    pub fn of(rules: &[resource::Rule], default_prefix: &str) -> Self {
        rules::chain(rules, &LogPrefix::new(default_prefix)).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(json: &str) -> String {
        let value = format!(r#"{{"inbound_rules":[{json}],"outbound_rules":[]}}"#);
        let key = "/calico/v1/policy/profile/p/rules".parse().unwrap();
        match tortie_config::Resource::parse(&key, value.as_bytes()).unwrap() {
            tortie_config::Resource::ProfileRules(rules) => {
                Chain::of(&rules.inbound, "calico-packet").rules.remove(0).to_string()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rules_read_as_a_sentence() {
        assert_eq!(words("{}"), "allow");
        assert_eq!(
            words(
                r#"{"action":"deny","protocol":"tcp","src_tag":"web","!src_net":"10.0.0.0/8","dst_ports":[80,"1000:2000"]}"#
            ),
            "deny tcp from (has(web)) not 10.0.0.0/8 to port 80,1000:2000"
        );
        assert_eq!(
            words(
                r#"{"action":"log","protocol":"icmp","!icmp_type":8,"!icmp_code":0,"dst_selector":"a == 'b'"}"#
            ),
            "log (logged as `calico-packet`) icmp not (type 8 code 0) to (a == \"b\")"
        );
        assert_eq!(words(r#"{"action":"pass","ip_version":6}"#), "next-tier IPv6");
    }
}
