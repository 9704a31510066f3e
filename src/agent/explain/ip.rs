//! Explains the handling of an address on this host: its owner, its route and its policy rules. Pure
//! functions.

use super::origin::PrefixOrigin;
use crate::api::explain::{Certainty, Step, Verdict, Why};
use crate::api::policy::EndpointDetail;
use crate::api::status::RouteGet;
use tortie_config::counted;

/// Evidence on an address.
#[derive(Debug, Clone)]
pub(super) struct AddressEvidence {
    pub(super) address: String,
    pub(super) origin: PrefixOrigin,
    /// Endpoint of any host that uses the address.
    pub(super) endpoint: Option<EndpointDetail>,
    /// Endpoints of this host that use the address, if there are several.
    pub(super) held: Vec<String>,
    /// Host that has the address as its own.
    pub(super) host: Option<String>,
    pub(super) route: RouteGet,
    /// Outgoing interface of packets to the address.
    pub(super) device: Option<String>,
}

/// Completes an answer, which so far has only its metadata, from the evidence.
pub(super) fn answer(mut why: Why, e: &AddressEvidence) -> Why {
    let here = e.endpoint.as_ref().filter(|found| found.endpoint.host == why.node);
    let (code, text) = match (&e.endpoint, &e.host) {
        _ if e.held.len() > 1 => (
            "duplicate-address",
            format!("belongs to {} of this host: {}", counted(e.held.len(), "endpoint"), e.held.join(", ")),
        ),
        (Some(found), _)
            if here.is_some() && found.endpoint.state != "up" && found.endpoint.state != "active" =>
        {
            let end = &found.endpoint;
            (
                "endpoint-failed",
                format!("belongs to {} of this host, which is {}: {}", end.name, end.state, end.reason),
            )
        }
        (Some(found), _) => ("ok", format!("belongs to {} on {}", found.endpoint.name, found.endpoint.host)),
        (None, Some(host)) => ("ok", format!("is the address of host {host}")),
        (None, None) => ("no-endpoint", "belongs to no endpoint in the store".to_owned()),
    };
    why.good = code == "ok";
    why.code = code.to_owned();
    why.answer = format!("{} {text}", e.address);
    let mut add = |verdict, name: &str, text: String| why.steps.push(Step::new(verdict, name, text));
    if e.held.len() > 1 {
        add(Verdict::Stop, "endpoints", e.held.join(", "));
        why.conclusion = Some("only one of them receives its packets".to_owned());
        why.certainty = Certainty::Implied;
    }
    if let Some(found) = &e.endpoint {
        let end = &found.endpoint;
        let at = end.interface.as_ref().map_or_else(String::new, |name| format!(", interface {name}"));
        let why = if end.reason.is_empty() { String::new() } else { format!(": {}", end.reason) };
        let ok = matches!(end.state.as_str(), "up" | "active");
        let verdict = if ok { Verdict::Ok } else { Verdict::Stop };
        add(verdict, "endpoint", format!("{} on {}{at}, {}{why}", end.name, end.host, end.state));
    }
    if let Some(pool) = e.origin.pool {
        add(Verdict::Note, "pool", pool.to_string());
    }
    match &e.route.bgp {
        Some(route) => {
            let best = route.paths.iter().find(|path| path.best);
            let from = best
                .map_or_else(|| "no usable path".to_owned(), |p| format!("from {}: {}", p.from, p.reason));
            add(Verdict::Note, "BGP", format!("{}, {from}", route.prefix));
        }
        None => add(Verdict::Note, "BGP", "no route covers it".to_owned()),
    }
    if let Some(row) = &e.route.kernel {
        let via = if row.via.is_empty() { row.kind.clone() } else { row.via.join(", ") };
        add(Verdict::Note, "kernel", format!("{} {via}, {} ({})", row.prefix, row.state, row.reason));
    }
    let leaves = e.device.as_ref().map_or_else(String::new, |device| format!("; packets leave by {device}"));
    add(Verdict::Note, "main table", format!("{}{leaves}", e.route.kernel_lookup));
    if let Some(found) = here {
        let end = &found.endpoint;
        let policies = end.policies.unwrap_or_default();
        let profiles =
            if end.profiles.is_empty() { "no profile".to_owned() } else { end.profiles.join(", ") };
        let text = match policies {
            0 => format!("no policy selects it; profiles decide: {profiles}"),
            1 => "1 policy selects it".to_owned(),
            n => format!("{n} policies select it"),
        };
        add(Verdict::Note, "policy", text);
        why.fix.push(format!("tortie endpoint show {}", end.name));
    }
    why.steps.extend(e.origin.step());
    why.steps.extend(e.origin.history());
    why.fix.push(format!("tortie why route {}", e.address));
    why.not_looked_at =
        vec!["blocks and handles of other hosts (tortie ipam show asks the store)".to_owned()];
    if here.is_none() && e.endpoint.is_some() {
        why.not_looked_at.push("the other host".to_owned());
    }
    why
}
