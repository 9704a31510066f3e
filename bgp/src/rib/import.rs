//! Whether a received route is a candidate: loop checks and import policy.

use super::Shared;
use super::source::Source;
use crate::api::Import;
use crate::attr::Attributes;
use tortie_config::Cidr;

/// A path is used.
pub(crate) const ACCEPTED: u8 = 0;

/// Reasons by number: a path holds one octet.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    all: Vec<(&'static str, u64)>,
}

impl Reasons {
    /// The number of this reason.
    pub(crate) fn number(&mut self, reason: &'static str) -> u8 {
        let at = match self.all.iter().position(|(r, _)| *r == reason) {
            Some(at) => at,
            None => {
                // More reasons than an octet holds share the last number.
                if self.all.len() < 254 {
                    self.all.push((reason, 0));
                }
                self.all.len() - 1
            }
        };
        u8::try_from(at + 1).unwrap_or(u8::MAX)
    }

    /// The number of this reason; counts a route that was refused for it.
    fn count(&mut self, reason: &'static str) -> u8 {
        let number = self.number(reason);
        if let Some((_, n)) = self.all.get_mut(usize::from(number) - 1) {
            *n += 1;
        }
        number
    }

    pub(crate) fn text(&self, number: u8) -> Option<&'static str> {
        self.all.get(usize::from(number).checked_sub(1)?).map(|(r, _)| *r)
    }

    pub(crate) fn totals(&self) -> Vec<(&'static str, u64)> {
        self.all.clone()
    }
}

/// Why no route with these attributes is used from this peer, whatever its prefix.
pub(crate) fn loop_check(shared: &Shared, from: &Source, attributes: &Attributes) -> Option<&'static str> {
    let allowed = usize::from(from.allow_own_as);
    // RFC 4271 9.1.2; with a local AS of its own the session must not hide the global one.
    if attributes.as_path.count(from.local_asn) > allowed
        || (from.local_asn != shared.asn && attributes.as_path.count(shared.asn) > allowed)
    {
        return Some("as_loop");
    }
    // RFC 4456 8.
    if attributes.originator_id() == Some(shared.router_id) {
        return Some("originator_loop");
    }
    let clusters = attributes.cluster_list();
    if !clusters.is_empty() && (clusters.contains(&shared.router_id) || shared.is_own_cluster(clusters)) {
        return Some("cluster_loop");
    }
    // RFC 4271 5.1.3: a route whose next hop we are leads nowhere.
    if from.own.contains(&attributes.next_hop) {
        return Some("next_hop_self");
    }
    None
}

/// The number of the reason why this received route is not used, or [`ACCEPTED`]; counts refusals.
pub(crate) fn import(
    shared: &mut Shared,
    source: u32,
    prefix: Cidr,
    attr: u32,
    looped: Option<&'static str>,
) -> u8 {
    decide(shared, source, prefix, attr, looped).map_or(ACCEPTED, |reason| shared.reasons.count(reason))
}

/// Why this route is not used.
pub(crate) fn decide(
    shared: &Shared,
    source: u32,
    prefix: Cidr,
    attr: u32,
    looped: Option<&'static str>,
) -> Option<&'static str> {
    if looped.is_some() {
        return looped;
    }
    let (from, attributes) = (shared.sources.get(source)?, shared.attrs.attributes(attr)?);
    match shared.policy.0.import(&from.view(), prefix, attributes) {
        Import::Accept => None,
        Import::Reject(reason) => Some(reason),
    }
}
