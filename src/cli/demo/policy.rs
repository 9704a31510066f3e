//! Policy check of the demo: a new policy stops a ping, the agent names it as the cause, and its removal lets
//! the ping pass.

use std::time::Instant;

use serde_json::json;

use super::checks::{Found, Limits, ping};
use super::network::Network;
use super::probe::until;
use crate::api::policy::Trace;
use tortie_store::Op;

const NAME: &str = "no-ping";

/// Checks a policy that denies echo requests to the second host's workload.
///
/// # Errors
/// The error of a workload, an agent or the store.
pub fn policy_stops_ping(net: &Network, limits: &Limits) -> Found {
    let begin = Instant::now();
    let [from, to, ..] = net.hosts.as_slice() else { return Err("needs two hosts".to_owned()) };
    let address = *to.workload.addresses.first().ok_or("the workload has no address")?;
    let key = format!("/calico/v1/policy/tier/default/policy/{NAME}");
    let value = json!({
        "selector": format!("app == '{}'", to.workload.name),
        "types": ["ingress"],
        "inbound_rules": [
            { "action": "deny", "protocol": "icmp" },
            { "action": "deny", "protocol": "icmpv6", "icmp_type": 128 },
            { "action": "allow" },
        ],
        "outbound_rules": [],
    });
    let path = format!("{}({}) -> {address}({})", from.workload.name, from.name, to.name);
    let answered = |wanted: bool| {
        until(limits.change * 5, || {
            let pings = ping(net, from, address, 2)?;
            let all = if wanted { pings.lost() == 0 } else { pings.answered == 0 };
            if all {
                Ok(pings)
            } else {
                Err(format!("{path}: {} of {} answered", pings.answered, pings.sent))
            }
        })
    };
    net.commit(vec![Op::Put { key: key.clone(), value: value.to_string().into_bytes(), lease: None }])?;
    let stopped = answered(false)?;
    let source = from.workload.addresses.first().map(ToString::to_string).unwrap_or_default();
    let proto = if address.is_ipv4() { "icmp" } else { "icmpv6" };
    let question = format!("/v1/why/packet?from={source}&to={address}&proto={proto}");
    let why: Trace = net.ask(&to.name, &question)?;
    if why.verdict != "deny" || !why.by.contains(NAME) {
        return Err(format!("{} says {} by {}", to.name, why.verdict, why.by));
    }
    net.commit(vec![Op::Delete { key }])?;
    let passes = answered(true)?;
    Ok((
        begin.elapsed(),
        format!(
            "{path}: {} of {} echo requests answered with policy {NAME}, {} of {} without; why packet: {}",
            stopped.answered, stopped.sent, passes.answered, passes.sent, why.by
        ),
    ))
}
