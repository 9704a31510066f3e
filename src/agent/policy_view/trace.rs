//! Describes the path of a packet: evaluated policies and profiles, and the rule that decided. The evaluation
//! itself is done by the policy engine ([`Path`]).

use std::net::IpAddr;

use tortie_config::Selector;
use tortie_config::key::EndpointKey;
use tortie_config::resource::{EndAction, HostAction, Protocol};
use tortie_config::selector::Expr;

use crate::api::policy::{TraceEnd, TraceHost, TraceRule, TraceStep};
use tortie_engine::model::endpoint_name::endpoint_name;
use tortie_engine::policy::path::{Change, Fix, OUTSIDE, Path, Place, Reason, Side, Stage, Step};
use tortie_engine::policy::{
    ChainId, Decider, Decision, EndpointPolicy, Packet, Ruleset, SetId, Stages, Tier, Verdict,
};

/// Describes the path through one host.
pub(in crate::agent) fn host(
    name: &str,
    here: bool,
    outer: bool,
    path: &Path,
    ruleset: &Ruleset,
) -> TraceHost {
    let decisive = path.decisive();
    let steps = path.steps.iter();
    TraceHost {
        host: name.to_owned(),
        here,
        outer,
        verdict: verdict_label(path.verdict).to_owned(),
        steps: steps.map(|s| step(s, decisive.is_some_and(|d| std::ptr::eq(d, s)), ruleset)).collect(),
    }
}

/// Describes the rule that decided.
pub(in crate::agent) fn decided_by(path: &Path) -> String {
    let Some(step) = path.decisive() else { return "no rule of ours applies to it".to_owned() };
    let whose = |key: &Option<EndpointKey>| {
        key.as_ref()
            .map_or_else(String::new, |key| format!(" ({} {})", stage(step.stage), endpoint_name(key)))
    };
    let what = match &step.reason {
        Reason::Policy(decision) => decider(&decision.by),
        reason => why(reason),
    };
    format!("{what}{}", whose(&step.endpoint))
}

pub(in crate::agent) fn verdict_label(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    }
}

pub(in crate::agent) fn decider(by: &Decider) -> String {
    match by {
        Decider::Rule(id, at) => format!("{}, rule {at}", id.source),
        Decider::EndOfTier(tier) => format!("end of tier {tier}"),
        Decider::EndOfProfiles => "no policy and no profile allows it".to_owned(),
        Decider::Nobody => "no rule matches".to_owned(),
    }
}

/// Describes a change that would allow a packet. `src` is its source address before any translation.
pub(in crate::agent) fn change(
    change: &Change,
    packet: &Packet,
    src: IpAddr,
    [from, to]: [&TraceEnd; 2],
) -> String {
    let (list, rule) = (&change.chain, change.rule.unwrap_or_default());
    // After address translation, the rule does not see the original end.
    let who = |which: Side| match which {
        Side::Source if packet.src == src => from.endpoint.as_deref(),
        Side::Source => None,
        Side::Destination => to.endpoint.as_deref(),
    };
    let (end, addr) = match &change.fix {
        Fix::Select(Side::Destination, _) | Fix::Deselect(Side::Destination, _) => ("dst", packet.dst),
        _ => ("src", packet.src),
    };
    match &change.fix {
        Fix::Select(which, set) => match who(*which) {
            Some(who) => {
                format!("{} on {who}, or let {end}_selector of rule {rule} of {list} select it", label(set))
            }
            None => format!("let rule {rule} of {list} match {addr} ({end}_net in place of its selector)"),
        },
        Fix::Deselect(which, set) => {
            let who = who(*which).map_or_else(|| addr.to_string(), str::to_owned);
            format!("exclude {who} from !{end}_selector `{}` of rule {rule} of {list}", set.selector())
        }
        Fix::Widen(field) => {
            let value = match (*field, packet.ports, packet.icmp) {
                ("protocol" | "!protocol", ..) => Protocol::new(packet.protocol).map(|name| name.to_string()),
                ("src_ports" | "!src_ports", Some((port, _)), _) => Some(port.to_string()),
                ("dst_ports" | "!dst_ports", Some((_, port)), _) => Some(port.to_string()),
                ("icmp_type" | "!icmp_type", _, Some((kind, code))) => Some(format!("{kind} code {code}")),
                ("src_net" | "!src_net", ..) => Some(packet.src.to_string()),
                ("dst_net" | "!dst_net", ..) => Some(packet.dst.to_string()),
                _ => None,
            };
            let value = value.unwrap_or_else(|| "this packet".to_owned());
            match field.strip_prefix('!') {
                Some(_) => format!("remove {value} from {field} of rule {rule} of {list}"),
                None => format!("add {value} to {field} of rule {rule} of {list}"),
            }
        }
        Fix::Remove => {
            format!("remove rule {rule} from {list}, or insert a rule that allows the packet before it")
        }
        Fix::Write => format!("set {}", list.source),
        Fix::Add => format!("add a rule that allows the packet to {list}"),
    }
}

/// Describes the selector that an endpoint would have to match.
fn label(set: &SetId) -> String {
    let selector = set.selector();
    match selector.parse::<Selector>().as_ref().map(Selector::expr) {
        Ok(Expr::Eq(name, value)) => format!("label {name}={value}"),
        Ok(Expr::Has(name)) => format!("label or tag {name}"),
        _ => format!("labels for which `{selector}` holds"),
    }
}

fn step(step: &Step, decisive: bool, ruleset: &Ruleset) -> TraceStep {
    let rules = match &step.reason {
        Reason::Policy(decision) => {
            let policy = step.endpoint.as_ref().and_then(|key| ruleset.endpoints.get(key));
            policy.map(|policy| policies_evaluated(step.stage, policy, decision, ruleset)).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    TraceStep {
        stage: stage(step.stage).to_owned(),
        endpoint: step.endpoint.as_ref().map(endpoint_name),
        verdict: step.verdict.map(|verdict| verdict_label(verdict).to_owned()),
        text: why(&step.reason),
        rules,
        decisive,
    }
}

/// Returns the name of a stage.
fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Source => "source",
        Stage::Untracked => "untracked",
        Stage::PreDnat => "pre-dnat",
        Stage::Dnat => "dnat",
        Stage::Route => "route",
        Stage::Tunnel => "tunnel",
        Stage::FromWorkload => "from-workload",
        Stage::ToHost => "to-host",
        Stage::ForwardInbound => "forward-inbound",
        Stage::ForwardOutbound => "forward-outbound",
        Stage::HostInbound => "host-inbound",
        Stage::ToWorkload => "to-workload",
        Stage::HostOutbound => "host-outbound",
        Stage::Snat => "snat",
    }
}

fn why(reason: &Reason) -> String {
    match reason {
        Reason::Policy(decision) => decider(&decision.by),
        Reason::Failsafe => "this port is always open (failsafe)".to_owned(),
        Reason::Established => "of a connection that was allowed when it began".to_owned(),
        Reason::Invalid => "connection tracking calls it invalid".to_owned(),
        Reason::Inactive => "the endpoint is not active".to_owned(),
        Reason::UnknownInterface => "no endpoint has this workload interface".to_owned(),
        Reason::OwnSource => "its source is an address of the endpoint".to_owned(),
        Reason::Spoofed => "its source is not an address of the endpoint".to_owned(),
        Reason::Loopback => "to a loopback address of the host".to_owned(),
        Reason::Neighbour => "IPv6 needs it".to_owned(),
        Reason::HostService => {
            "workloads always reach DHCP, DNS and OpenStack's metadata on their host".to_owned()
        }
        Reason::NoIpv6 => "IPv6 of workloads is disabled (Ipv6Support)".to_owned(),
        Reason::AcceptedEarlier => "untracked or pre-DNAT policy accepted it before".to_owned(),
        Reason::KnownTunnel => "IPIP between hosts of the cluster".to_owned(),
        Reason::UnknownTunnel => "IPIP from a source that is not a host of the cluster".to_owned(),
        Reason::KnownVxlan => "VXLAN between hosts of the cluster".to_owned(),
        Reason::UnknownVxlan => "VXLAN from a source that is not a host of the cluster".to_owned(),
        Reason::VxlanOfWorkload => "VXLAN from a workload (AllowVXLANPacketsFromWorkloads)".to_owned(),
        Reason::ToHost(action) => format!("DefaultEndpointToHostAction is {}", to_host(*action)),
        Reason::OwnWorkload => "a host may always reach its own workloads".to_owned(),
        Reason::NoEndpoint => "the interface has no endpoint: nothing is enforced".to_owned(),
        Reason::Translated(from, to) => format!("{from} becomes {to}"),
        Reason::Masquerade => "masqueraded: it leaves with the host's address".to_owned(),
        Reason::Routed(Place::Host) => "to this host".to_owned(),
        Reason::Routed(Place::Interface(name)) if **name == *OUTSIDE => "to other hosts".to_owned(),
        Reason::Routed(Place::Interface(name)) => format!("out by {name}"),
        Reason::NoRoute => "no route".to_owned(),
    }
}

/// Returns the action as stored.
fn to_host(action: HostAction) -> &'static str {
    match action {
        HostAction::Drop => "DROP",
        HostAction::Accept => "ACCEPT",
        HostAction::Return => "RETURN",
    }
}

/// Lists the evaluated chains with their results, up to the one that decided.
fn policies_evaluated(
    stage: Stage,
    policy: &EndpointPolicy,
    decision: &Decision,
    ruleset: &Ruleset,
) -> Vec<TraceRule> {
    let mut out = Vec::new();
    let mut walk = PolicyDecision { decision, ruleset, out: &mut out };
    match (stage, policy) {
        (Stage::Untracked, EndpointPolicy::Host(host)) => {
            let inbound = decision_is_in(decision, &host.untracked_inbound);
            walk.chains(None, if inbound { &host.untracked_inbound } else { &host.untracked_outbound });
        }
        (Stage::PreDnat, EndpointPolicy::Host(host)) => {
            walk.chains(None, &host.pre_dnat);
        }
        (Stage::ForwardInbound, EndpointPolicy::Host(host)) => _ = walk.tiers(&host.forward_inbound),
        (Stage::ForwardOutbound, EndpointPolicy::Host(host)) => _ = walk.tiers(&host.forward_outbound),
        (Stage::HostInbound, EndpointPolicy::Host(host)) => walk.stages(&host.inbound),
        (Stage::HostOutbound, EndpointPolicy::Host(host)) => walk.stages(&host.outbound),
        (Stage::FromWorkload, EndpointPolicy::Workload(workload)) => walk.stages(&workload.outbound),
        (Stage::ToWorkload, EndpointPolicy::Workload(workload)) => walk.stages(&workload.inbound),
        _ => {}
    }
    out
}

/// True if the decision was made by one of these chains, which tells the direction.
fn decision_is_in(decision: &Decision, chains: &[ChainId]) -> bool {
    decision.matched.first().is_none_or(|(id, _)| chains.contains(id))
}

struct PolicyDecision<'a> {
    decision: &'a Decision,
    ruleset: &'a Ruleset,
    out: &'a mut Vec<TraceRule>,
}

/// Continuation of a tier after a chain.
#[derive(PartialEq, Eq)]
enum Continuation {
    Continues,
    /// The rest of the tier is skipped.
    Passed,
    /// Evaluation ends.
    Decided,
}

impl PolicyDecision<'_> {
    /// Lists the tiers up to the one that decided. Returns true if one did.
    fn tiers(&mut self, tiers: &[Tier]) -> bool {
        for tier in tiers {
            match self.chains(Some(&tier.name), &tier.policies) {
                Continuation::Decided => return true,
                Continuation::Passed => {}
                Continuation::Continues => {
                    self.end(Some(&tier.name), format!("end of tier {}", tier.name), tier.end);
                    if tier.end == EndAction::Deny {
                        return true;
                    }
                }
            }
        }
        false
    }

    fn stages(&mut self, stages: &Stages) {
        if self.tiers(&stages.tiers) {
            return;
        }
        for profile in &stages.profiles {
            if self.chains(None, std::slice::from_ref(profile)) == Continuation::Decided {
                return;
            }
        }
        self.end(None, "no profile allows it".to_owned(), EndAction::Deny);
    }

    fn chains(&mut self, tier: Option<&str>, chains: &[ChainId]) -> Continuation {
        for id in chains {
            match self.chain(tier, id) {
                Continuation::Continues => {}
                other => return other,
            }
        }
        Continuation::Continues
    }

    fn chain(&mut self, tier: Option<&str>, id: &ChainId) -> Continuation {
        let chain = self.ruleset.chains.get(id);
        let mut add_step = |rule: Option<usize>, text: String, outcome: Option<&str>| {
            self.out.push(TraceRule {
                tier: tier.map(str::to_owned),
                chain: id.source.to_string(),
                rule,
                text,
                outcome: outcome.map(str::to_owned),
            });
        };
        if let Some(closed) = chain.and_then(|chain| chain.fail_closed) {
            add_step(None, closed.to_string(), Some("deny"));
            return Continuation::Decided;
        }
        let mut matched = false;
        for (_, at) in self.decision.matched.iter().filter(|(of, _)| of == id) {
            let rule = chain.and_then(|chain| chain.rules.get(*at));
            let action = rule.map_or("", |rule| rule.action.as_str());
            add_step(Some(*at), rule.map(ToString::to_string).unwrap_or_default(), Some(action));
            matched = true;
            match action {
                "allow" | "deny" => return Continuation::Decided,
                "next-tier" => return Continuation::Passed,
                _ => {}
            }
        }
        if !matched {
            add_step(None, "no rule matches".to_owned(), None);
        }
        Continuation::Continues
    }

    fn end(&mut self, tier: Option<&str>, text: String, action: EndAction) {
        self.out.push(TraceRule {
            tier: tier.map(str::to_owned),
            chain: String::new(),
            rule: None,
            text,
            outcome: Some(match action {
                EndAction::Deny => "deny".to_owned(),
                EndAction::Pass => "next-tier".to_owned(),
            }),
        });
    }
}
