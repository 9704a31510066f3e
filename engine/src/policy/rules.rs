//! Compiles rules of the store into chains: tags and selectors become sets, and log prefixes are limited to
//! characters that the kernel accepts.

use std::collections::BTreeSet;

use tortie_config::Selector;
use tortie_config::key::IpFamily;
use tortie_config::resource::{self, Action, PortName, Protocol, Side};
use tortie_net::Cidr;

use super::types::{Chain, End, FailClosed, LogPrefix, PortSetId, Rule, SetId};

const TCP: u8 = 6;

/// Sets that a chain uses, each once.
#[derive(Debug, Clone, Default)]
pub(super) struct UsedSets {
    /// Address sets, with their selectors.
    pub(super) addresses: Vec<(SetId, Selector)>,
    /// Sets of named ports.
    pub(super) ports: BTreeSet<PortSetId>,
}

/// Compiles a list of rules, and returns the sets that they use.
pub(super) fn chain(rules: &[resource::Rule], default_prefix: &LogPrefix) -> (Chain, UsedSets) {
    let mut used = UsedSets::default();
    let rules: Vec<Rule> =
        rules.iter().map(|rule| compile(rule, default_prefix, &mut used.addresses)).collect();
    used.addresses.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    used.addresses.dedup_by(|a, b| a.0 == b.0);
    let ends = rules.iter().flat_map(|rule| [&rule.src, &rule.dst]);
    used.ports = ends.flat_map(|end| [&end.named_ports, &end.not_named_ports]).flatten().cloned().collect();
    (Chain { rules, fail_closed: None }, used)
}

/// Returns the chain for rules that are missing or cannot be parsed: it denies all packets.
pub(super) fn fail_closed(why: FailClosed) -> Chain {
    Chain { rules: vec![Rule { action: Action::Deny, ..Rule::default() }], fail_closed: Some(why) }
}

fn compile(rule: &resource::Rule, default_prefix: &LogPrefix, sets: &mut Vec<(SetId, Selector)>) -> Rule {
    let log = match (&rule.log_prefix, rule.action) {
        (Some(prefix), _) => Some(LogPrefix::new(prefix)),
        (None, Action::Log) => Some(default_prefix.clone()),
        (None, _) => None,
    };
    // A named port without protocol is one of TCP, as in Calico.
    let of_names = rule.protocol.or_else(|| Protocol::new(TCP));
    let has_names = !rule.src.named_ports.is_empty() || !rule.dst.named_ports.is_empty();
    Rule {
        action: rule.action,
        log,
        family: rule.ip_version,
        protocol: if has_names { of_names } else { rule.protocol },
        not_protocol: rule.not_protocol,
        src: end(&rule.src, of_names, sets),
        dst: end(&rule.dst, of_names, sets),
        icmp: rule.icmp,
        not_icmp: rule.not_icmp,
    }
}

fn end(side: &Side, protocol: Option<Protocol>, sets: &mut Vec<(SetId, Selector)>) -> End {
    let named = |names: &[PortName]| PortSetId::new(protocol?, names);
    let mut use_set = |selector: Selector| {
        let id = SetId::of(&selector);
        sets.push((id.clone(), selector));
        id
    };
    // `Rule::parse` verified that the tag is a valid label name.
    let mut both = |tag: &Option<String>, selector: &Option<Selector>| -> Vec<SetId> {
        let tag = tag.as_deref().and_then(Selector::has);
        let mut ids: Vec<SetId> = tag.into_iter().chain(selector.clone()).map(&mut use_set).collect();
        ids.dedup();
        ids
    };
    End {
        sets: both(&side.tag, &side.selector),
        not_sets: both(&side.not_tag, &side.not_selector),
        nets: side.nets.clone(),
        not_nets: side.not_nets.clone(),
        ports: side.ports.clone(),
        named_ports: named(&side.named_ports),
        not_ports: side.not_ports.clone(),
        not_named_ports: named(&side.not_named_ports),
    }
}

impl Rule {
    /// Returns true if packets of this family can match. A network list without any network of the family,
    /// positive or negated, restricts the rule to the other family; ICMP is IPv4 and ICMPv6 is IPv6.
    #[must_use]
    pub fn is_for(&self, family: IpFamily) -> bool {
        let other =
            |nets: &&Vec<Cidr>| !nets.is_empty() && nets.iter().all(|net| IpFamily::of_cidr(net) != family);
        let mut lists = [&self.src.nets, &self.src.not_nets, &self.dst.nets, &self.dst.not_nets].into_iter();
        let foreign = match family {
            IpFamily::V4 => 58,
            IpFamily::V6 => 1,
        };
        self.family.is_none_or(|only| only == family)
            && self.protocol.is_none_or(|protocol| protocol.number() != foreign)
            && !lists.any(|nets| other(&nets))
    }
}
