//! The "applied" query: reports when the dataplane has applied a key.
//!
//! An answer waits for the kernel's acknowledgement of the intent, and of the policy change, that contain the
//! key's revision; not for later ones. Changes of other keys therefore never delay an answer, and unrelated
//! failures do not make it fail.

use std::net::IpAddr;

use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_net::Cidr;

use crate::agent::core::Core;
use crate::api::status::AppliedRequest;
use tortie_engine::policy::Source;

/// Answer: the result as the API's word, and the reason.
pub(in crate::agent) type Verdict = (&'static str, Option<String>);

/// Kernel acknowledgements that a revision needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct AckTarget {
    /// Generation of the routing intent.
    pub(in crate::agent) generation: u64,
    /// Serial number of the change of endpoints and rules.
    pub(in crate::agent) serial: u64,
}

/// Returns the answer to a request; `None` if it is still pending. `target` is kept with the request and set
/// once the revision was sent to the kernel.
pub(in crate::agent) fn verdict(
    core: &Core,
    request: &AppliedRequest,
    target: &mut Option<AckTarget>,
) -> Option<Verdict> {
    // During a burst of container starts, all requests wait for one kernel answer and are evaluated again
    // with each fact.
    let unanswered = |target: AckTarget| {
        core.acknowledged < target.generation || core.enforcement.acknowledged() < target.serial
    };
    if core.frozen.is_none() && target.is_some_and(unanswered) {
        return None;
    }
    let failed = |reason: String| Some(("failed", Some(reason)));
    let key = match request.key.parse::<Key>() {
        Ok(key) => key,
        Err(error) => return failed(error.to_string()),
    };
    if let Key::Endpoint(endpoint) = &key
        && endpoint.host() != core.model.node()
    {
        let (host, node) = (endpoint.host(), core.model.node());
        return failed(format!(
            "this is an endpoint of {host}, and this agent is {node}'s: ask the agent of {host}"
        ));
    }
    if let Some(reason) = &core.frozen {
        return Some(("frozen", Some(reason.text.clone())));
    }
    if !core.running() || core.in_force < request.revision {
        return None;
    }
    let newest = AckTarget { generation: core.generation, serial: core.enforcement.serial() };
    let target = *target.get_or_insert(newest);
    if unanswered(target) {
        return None;
    }
    if let Some(problem) = core.model_problem(&request.key) {
        return failed(problem);
    }
    if let Key::Block(block) | Key::Affinity { block, .. } = &key
        && let Some(why) = core.refused_blackholes.get(block)
    {
        return failed(format!("the kernel refuses the blackhole of {block}: {why}"));
    }
    if let Key::Endpoint(endpoint) = &key
        && let Some(why) = core.enforcement.failure(endpoint)
    {
        return failed(why.to_owned());
    }
    if let Key::Endpoint(endpoint) = &key
        && let Some((addr, host)) = address_of_host(core, endpoint)
    {
        return failed(format!(
            "{addr} is the address of host {host}, which was registered meanwhile, so no workload may have \
             it: try again for another address"
        ));
    }
    let source = match &key {
        Key::Policy { tier, name } => Some(Source::policy(core.model.dialect(), tier, name)),
        Key::Profile { name, part: ProfilePart::Rules } => Some(Source::Profile(name.as_str().into())),
        _ => None,
    };
    if matches!(
        key,
        Key::Policy { .. }
            | Key::Profile { .. }
            | Key::TierMetadata { .. }
            | Key::Tier { .. }
            | Key::NetworkSet { .. }
    ) && let Some(why) = &core.enforcement.rules_problem
    {
        return failed(why.clone());
    }
    if let Some((endpoint, why)) = source.and_then(|source| core.enforcement.failure_of(&source)) {
        return failed(format!("not in force for {}: {why}", Key::Endpoint(endpoint.clone())));
    }
    Some(("applied", None))
}

/// Returns an address of the endpoint that belongs to a host, with that host. IPAM excludes the addresses of
/// all hosts that were known at allocation time; a host registered since is known here, at the revision of
/// the endpoint.
fn address_of_host<'a>(core: &'a Core, endpoint: &EndpointKey) -> Option<(IpAddr, &'a str)> {
    let workload = core.model.workload(endpoint)?;
    let mut addrs = workload.value.nets().filter(|net| net.is_host()).map(Cidr::addr);
    addrs.find_map(|addr| Some((addr, core.model.hosts_by_address(addr).next()?.0)))
}
