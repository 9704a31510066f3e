//! Checks that commands make before they write. They are stricter than parsing, which must accept values of
//! other writers.

use crate::key::{BgpItem, Key, KeyError};
use crate::resource::{Resource, ValueError};

/// Reason why a key or its value should not be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The key is not in the data model, or its text is not canonical.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The value is not valid for the key.
    #[error("value of `{key}`: {error}")]
    Value {
        /// Key of the value.
        key: String,
        /// Faulty field, its text and the next step.
        #[source]
        error: ValueError,
    },
}

/// Checks a key and its value for `tortie store put`, `import` and `validate`. Unknown keys below `/calico/`
/// pass.
///
/// In addition to [`Resource::parse`] it rejects input that readers accept although no writer intends it: a
/// key that is not canonical, `Ready` with a value other than true and false, a filter without a direction,
/// an unknown endpoint state, a NAT mapping from a foreign address, a host endpoint with fields of a workload
/// endpoint, an IPAM configuration that can never allocate, an unknown log level.
///
/// # Errors
/// The first error found. It never contains a secret.
pub fn check(key_text: &str, value: &[u8]) -> Result<(), CheckError> {
    let key = Key::parse(key_text)?;
    let canonical = key.to_text();
    if canonical != key_text {
        let problem = format!("write it as `{canonical}`: other tools look there");
        return Err(KeyError { key: key_text.to_owned(), problem }.into());
    }
    Resource::parse(&key, value)
        .and_then(|resource| strict(&resource, value))
        .map_err(|error| CheckError::Value { key: key_text.to_owned(), error })
}

/// Returns the reason why a key of Calico, which may be written, has no effect in Tortie. `None` if it is
/// used, or unknown.
#[must_use]
pub fn unsupported(key_text: &str) -> Option<String> {
    match Key::parse(key_text).ok()? {
        Key::Bgp(_, BgpItem::CustomFilter(_, name)) => Some(format!(
            "`{name}` is BIRD's filter language, which Tortie does not run: write its rules to \
             /calico/bgp/v1/global/filters/NAME and name that in `filters` of the peers"
        )),
        _ => None,
    }
}

const WORKLOAD_FIELDS: [&str; 8] =
    ["ipv4_nets", "ipv6_nets", "ipv4_gateway", "ipv6_gateway", "ipv4_nat", "ipv6_nat", "mac", "state"];

fn strict(resource: &Resource, value: &[u8]) -> Result<(), ValueError> {
    let text = || String::from_utf8_lossy(value).into_owned();
    match resource {
        Resource::Ready(false) if value != b"false" => {
            Err(ValueError::new("", format_args!("`{}`", text()), "write true or false, nothing else"))
        }
        Resource::LogLevel(_) if !matches!(text().trim(), "none" | "info" | "debug") => {
            Err(ValueError::new("", format_args!("`{}`", text().trim()), "write none, info or debug"))
        }
        Resource::WorkloadEndpoint(endpoint) if !endpoint.active => {
            let stored: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
            match stored.get("state").and_then(serde_json::Value::as_str) {
                Some("inactive") => Ok(()),
                state => {
                    let found = state.map_or_else(|| "nothing".to_owned(), |state| format!("`{state}`"));
                    Err(ValueError::new("state", found, "write \"active\" or \"inactive\""))
                }
            }
        }
        Resource::WorkloadEndpoint(endpoint) => match endpoint.stray_nats().next() {
            None => Ok(()),
            Some((inside, _)) => {
                let field = if inside.is_ipv4() { "ipv4_nat" } else { "ipv6_nat" };
                let expected = "name one of the endpoint's own addresses as `int_ip`";
                Err(ValueError::new(field, format_args!("`{inside}`"), expected))
            }
        },
        Resource::HostEndpoint(endpoint) => {
            match WORKLOAD_FIELDS
                .into_iter()
                .find(|name| endpoint.extra.get(name).is_some_and(|v| !v.is_null()))
            {
                None => Ok(()),
                Some(name) => Err(ValueError::new(name, "a field of workload endpoints", "leave it out")),
            }
        }
        Resource::Policy(_) | Resource::ProfileRules(_) => strict_rules(value),
        Resource::Filter(filter) if filter.import.is_none() && filter.export.is_none() => {
            Err(ValueError::new("", "neither import nor export", "write a list of rules for one of them"))
        }
        Resource::IpamConfig(config) if !config.strict_affinity && !config.auto_allocate_blocks => {
            let expected = "nothing could be allocated: set it, or \"strict_affinity\", to true";
            Err(ValueError::new("auto_allocate_blocks", "`false`", expected))
        }
        _ => Ok(()),
    }
}

/// Rejects rule fields that only later versions of Calico have. An agent of this data model's time, running
/// next to Tortie, would ignore a policy with such a field.
fn strict_rules(value: &[u8]) -> Result<(), ValueError> {
    let stored: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
    for list in ["inbound_rules", "outbound_rules"] {
        let rules = stored.get(list).and_then(serde_json::Value::as_array);
        for (at, rule) in rules.into_iter().flatten().enumerate() {
            let text = |name: &str| rule.get(name).and_then(serde_json::Value::as_str).unwrap_or_default();
            let place = |name: &str| format!("{list}[{at}].{name}");
            for name in ["protocol", "!protocol"] {
                let lower = text(name).to_ascii_lowercase();
                if text(name) != lower {
                    let expected =
                        format!("write `{lower}`: the data model has names of protocols in small letters");
                    return Err(ValueError::new(place(name), format_args!("`{}`", text(name)), expected));
                }
            }
            if text("action") == "pass" {
                let expected = "write \"next-tier\", the data model's word for it";
                return Err(ValueError::new(place("action"), "`pass`", expected));
            }
            let with_ports =
                ["src_ports", "dst_ports", "!src_ports", "!dst_ports"].into_iter().find(|name| {
                    rule.get(name)
                        .and_then(serde_json::Value::as_array)
                        .is_some_and(|ports| !ports.is_empty())
                });
            let number = rule.get("protocol").and_then(serde_json::Value::as_u64);
            if let Some(ports) = with_ports
                && (matches!(text("protocol"), "sctp" | "udplite") || matches!(number, Some(132 | 136)))
            {
                let expected = "leave the ports out: the data model has them for tcp and udp";
                return Err(ValueError::new(
                    place(ports),
                    format_args!("ports with `{}`", text("protocol")),
                    expected,
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(key: &str, value: &str) -> String {
        check(key, value.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn good_values_and_unknown_keys_pass() {
        for (key, value) in [
            ("/calico/v1/Ready", "true"),
            ("/calico/v1/Ready", "false"),
            ("/calico/bgp/v1/global/as_num", "64512"),
            ("/calico/bgp/v1/global/loglevel", "info"),
            ("/calico/v1/host/h1/endpoint/e", r#"{"name": "eth0", "mac": null}"#),
            ("/calico/v1/host/h1/workload/k8s/w/endpoint/e", r#"{"name": "cali1", "state": "inactive"}"#),
            ("/calico/ipam/v2/config", r#"{"auto_allocate_blocks": true}"#),
            ("/calico/v1/config/bgp_node_mesh", r#"{"enabled": false}"#),
            ("/calico/dhcp/v1/subnet/1", "\u{0}anything"),
        ] {
            assert_eq!(check(key, value.as_bytes()), Ok(()), "{key} {value}");
        }
    }

    #[test]
    fn what_nobody_means_is_refused_though_it_can_be_read() {
        for (key, value, says) in [
            ("/calico/v1/Ready", "true\n", "write true or false"),
            ("/calico/bgp/v1/global/loglevel", "verbose", "found `verbose`"),
            ("/calico/v1/host/h1/endpoint/e", r#"{"name": "eth0", "mac": "ee:ee:ee:ee:ee:ee"}"#, "`mac`"),
            (
                "/calico/v1/host/h1/workload/k8s/w/endpoint/e",
                r#"{"name": "cali1", "state": "up"}"#,
                "found `up`",
            ),
            (
                "/calico/v1/host/h1/workload/k8s/w/endpoint/e",
                r#"{"name": "cali1"}"#,
                "`state`: found nothing",
            ),
            (
                "/calico/v1/host/h1/workload/k8s/w/endpoint/e",
                r#"{"name": "cali1", "state": "active", "ipv4_nat": [{"int_ip": "10.0.0.2", "ext_ip": "192.0.2.2"}]}"#,
                "found `10.0.0.2`; name one of the endpoint's own addresses",
            ),
            (
                "/calico/v1/policy/profile/p/rules",
                r#"{"inbound_rules": [{}, {"protocol": "TCP"}], "outbound_rules": []}"#,
                "`inbound_rules[1].protocol`: found `TCP`; write `tcp`",
            ),
            (
                "/calico/v1/policy/tier/default/policy/p",
                r#"{"selector": "all()", "inbound_rules": [], "outbound_rules": [{"action": "pass"}]}"#,
                "`outbound_rules[0].action`: found `pass`",
            ),
            (
                "/calico/v1/policy/tier/default/policy/p",
                r#"{"selector": "all()", "inbound_rules": [{"protocol": "sctp", "dst_ports": [1]}], "outbound_rules": []}"#,
                "`inbound_rules[0].dst_ports`: found ports with `sctp`",
            ),
            ("/calico/ipam/v2/config", "{}", "nothing could be allocated"),
            ("/calico/bgp/v1/global/filters/f", r#"{"exprot": []}"#, "neither import nor export"),
            (
                "/calico/v1/ipam/v4/pool/10.0.0.7-16",
                "{}",
                "write it as `/calico/v1/ipam/v4/pool/10.0.0.0-16`",
            ),
        ] {
            let text = problem(key, value);
            assert!(text.contains(says), "{key} {value}: {text}");
            assert!(text.contains(key), "{text}");
        }
    }

    #[test]
    fn what_only_calico_runs_is_named() {
        let text = unsupported("/calico/bgp/v1/global/custom_filters/v6/mine").unwrap();
        assert!(text.contains("`mine`") && text.contains("filters/NAME"), "{text}");
        assert_eq!(check("/calico/bgp/v1/global/custom_filters/v6/mine", b"accept;"), Ok(()));
        assert_eq!(unsupported("/calico/bgp/v1/global/filters/mine"), None);
    }

    #[test]
    fn wrong_keys_and_values_name_the_place() {
        assert!(problem("/calico/v1/ipam/v4/pool/x", "{}").contains("`x` is no prefix"));
        let text =
            problem("/calico/bgp/v1/global/peer_v4/192.0.2.1", r#"{"ip": "192.0.2.1", "as_num": "x"}"#);
        assert!(text.contains("`as_num`") && text.contains("`\"x\"`"), "{text}");
    }
}
