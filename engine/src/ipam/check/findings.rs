//! Finds inconsistencies in the IPAM data of the store, using the evidence of one host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::resource::{AffinityState, Attribute, Block, BlockAffinity};
use tortie_net::Cidr;

use super::{Evidence, Finding, IpamState, Kind, Repair, StoredValue};
use crate::ipam::keyspace::Keyspace;

/// Handle under which Windows hosts reserve addresses that they cannot use.
const WINDOWS: &str = "windows-reserved-ipam-handle";
/// Value of the attribute `type` for an address that an administrator reserved.
pub const RESERVED: &str = "reserved";
/// Middle of the handles of tunnel addresses: the kind of the tunnel stands before it, the host name follows.
const TUNNEL: &str = "-tunnel-addr-";
/// Kinds of tunnels in handles. The store shows the addresses of the first ones.
const TUNNEL_KINDS: [&str; 5] = ["ipip", "vxlan", "vxlan-v6", "wireguard", "wireguard-v6"];

/// Returns all inconsistencies, sorted by [`Kind`] and subject.
#[must_use]
pub fn findings(state: &IpamState, evidence: &Evidence) -> Vec<Finding> {
    let mut check = ConsistencyCheck { state, evidence, users: users(state, evidence), found: Vec::new() };
    check.addresses();
    check.users();
    check.interfaces();
    check.blocks();
    check.handles();
    check.affinities();
    for (key, why) in &state.unreadable {
        check.add_finding(Kind::Unreadable, key, why.clone(), None);
    }
    check.found.sort_by(|a, b| (a.kind, &a.subject).cmp(&(b.kind, &b.subject)));
    check.found
}

/// Users of one address, described for people: endpoints and interfaces.
#[derive(Default)]
struct Users {
    endpoints: Vec<String>,
    places: Vec<String>,
}

fn users(state: &IpamState, evidence: &Evidence) -> BTreeMap<IpAddr, Users> {
    let mut users: BTreeMap<IpAddr, Users> = BTreeMap::new();
    for endpoint in &state.endpoints {
        for net in endpoint.nets.iter().filter(|net| net.is_host()) {
            users.entry(net.addr()).or_default().endpoints.push(endpoint.key.clone());
        }
    }
    // A tunnel uses its address regardless of the allocating process: older writers left no handle, and a
    // workload may have the same address.
    for (host, addr) in &state.tunnels {
        if state.pool_of(*addr).is_some() {
            users.entry(*addr).or_default().endpoints.push(format!("the tunnel of {host}"));
        }
    }
    for seen in &evidence.seen {
        users.entry(seen.addr).or_default().places.push(seen.place.clone());
    }
    users
}

/// Returns true if an endpoint or a tunnel would show that an allocation of Calico 3 is in use: the handle is
/// `<network>.<container>` or a tunnel's, and nothing else is about to hold the address.
fn has_known_holder(attribute: &Attribute) -> bool {
    let known = |handle: &str| handle.contains('.') || handle.contains(TUNNEL);
    attribute.handle.as_deref().is_some_and(known) && attribute.alternate_owner.is_none()
}

struct ConsistencyCheck<'a> {
    state: &'a IpamState,
    evidence: &'a Evidence,
    users: BTreeMap<IpAddr, Users>,
    found: Vec<Finding>,
}

impl ConsistencyCheck<'_> {
    fn add_finding(&mut self, kind: Kind, subject: &str, evidence: String, fix: Option<Repair>) {
        self.found.push(Finding { kind, subject: subject.to_owned(), evidence, fix });
    }

    /// Returns true if only IPAM keys still refer to a host. False if the store has no hosts at all, since
    /// that proves nothing.
    fn is_gone(&self, host: &str) -> bool {
        !self.state.hosts.is_empty()
            && !self.state.hosts.contains(host)
            && self.state.endpoints.iter().all(|endpoint| endpoint.host != host)
            && self.evidence.host.as_deref() != Some(host)
    }

    fn addresses(&mut self) {
        for (cidr, stored) in &self.state.blocks {
            for (ordinal, attribute) in stored.value.allocated() {
                if let Some(addr) = cidr.nth(ordinal.into())
                    && !self.users.contains_key(&addr)
                {
                    self.unused((addr, ordinal), stored, attribute);
                }
            }
        }
    }

    /// Reports an allocated address that no endpoint and no interface uses.
    fn unused(&mut self, (addr, ordinal): (IpAddr, u32), block: &StoredValue<Block>, attribute: &Attribute) {
        let handle = attribute.handle.as_deref();
        let tunnel = handle.and_then(|handle| handle.split_once(TUNNEL));
        let tunnel = tunnel.filter(|(kind, _)| TUNNEL_KINDS.contains(kind));
        let tunnel_of = tunnel.map(|(_, host)| host);
        let is_tunnel = tunnel.is_some_and(|(kind, host)| {
            let is_unknown = kind.starts_with("wireguard") && !self.is_gone(host);
            is_unknown || self.state.tunnels.contains(&(host.to_owned(), addr))
        });
        let is_dockers = self.state.docker.get(&addr).is_some_and(|host| !self.is_gone(host));
        // Addresses that `tortie-ipam` allocates for a network of a host (on a bridge or on no interface,
        // with or without containers), and addresses that an administrator reserved without an endpoint.
        let is_kept = matches!(attribute.get("type"), Some("gateway" | RESERVED))
            && attribute.get("node").is_some_and(|host| !self.is_gone(host));
        if handle == Some(WINDOWS) || is_tunnel || is_dockers || is_kept || self.is_recent(attribute) {
            return;
        }
        let host = attribute.get("node").or(tunnel_of);
        let holder = match (handle, &attribute.secondary) {
            (Some(handle), _) => format!("allocated to `{handle}`"),
            (None, Some(_)) => "allocated without a handle".to_owned(),
            (None, None) => "allocated without handle and attributes".to_owned(),
        };
        let (kind, why) = match host {
            // Calico 3 has holders that are no endpoints, such as virtual machines between two hosts.
            Some(host) if self.state.is_calico_3 && !has_known_holder(attribute) => {
                (Kind::Unproven, format!("{holder} on {host}, in a form that only its writer can judge"))
            }
            Some(host) if self.is_gone(host) => {
                (Kind::Leaked, format!("{holder} on {host}, which is no longer a host of the cluster"))
            }
            Some(host) if self.evidence.host.as_deref() == Some(host) => match self.evidence.blind.as_slice()
            {
                [] => {
                    (Kind::Leaked, format!("{holder} on {host}; no endpoint and no interface there has it"))
                }
                [first, ..] => (
                    Kind::Unproven,
                    format!("{holder} on {host}; no endpoint has it, but {first} could not be checked"),
                ),
            },
            Some(host) => {
                (Kind::Unproven, format!("{holder} on {host}; no endpoint has it: check it on that host"))
            }
            None => (Kind::Unproven, format!("{holder}; no endpoint has it, and no host is recorded")),
        };
        let fix = Repair::Release {
            addr,
            block: block.value.cidr(),
            handle: attribute.handle.clone(),
            attributes: attribute.secondary.clone().unwrap_or_default(),
            revision: block.revision,
            sequence: block.value.sequence().map(|_| block.value.allocation_sequence(ordinal)),
        };
        self.add_finding(kind, &addr.to_string(), why, (kind == Kind::Leaked).then_some(fix));
    }

    /// Returns true if the address was allocated so recently that its endpoint may not be written yet.
    fn is_recent(&self, attribute: &Attribute) -> bool {
        let (Some(since), Some(recorded)) = (self.evidence.since, attribute.get("timestamp")) else {
            return false;
        };
        // The formats are `2026-01-02T03:04:05Z`, and `2026-01-02 03:04:05.678 +0000 UTC` of Calico's
        // writers; both are UTC.
        let seconds =
            |text: &str| text.chars().take(19).map(|c| if c == ' ' { 'T' } else { c }).collect::<String>();
        seconds(recorded) >= seconds(&since.to_string())
    }

    fn users(&mut self) {
        for (addr, users) in std::mem::take(&mut self.users) {
            let subject = addr.to_string();
            for (what, list) in [("endpoints", &users.endpoints), ("interfaces", &users.places)] {
                if list.len() > 1 {
                    let text = format!("{} {what} have it: {}", list.len(), list.join(", "));
                    self.add_finding(Kind::Duplicate, &subject, text, None);
                }
            }
            let Some(pool) = self.state.pool_of(addr).filter(|pool| pool.ipam) else { continue };
            let pool = pool.cidr;
            let block = self.state.block_of(addr);
            let held = block.and_then(|block| {
                let ordinal = u32::try_from(block.value.cidr().ordinal(addr)?).ok()?;
                block.value.allocation(ordinal)
            });
            let known = Keyspace::blocks_overlapping(&Cidr::host(addr))
                .into_iter()
                .any(|cidr| self.unreadable(&cidr));
            if let Some(user) = users.endpoints.first().or(users.places.first())
                && held.is_none()
                && !known
            {
                let text = format!(
                    "{user} has it, of pool {pool}, and it is not allocated: another workload may get it"
                );
                self.add_finding(Kind::Unaccounted, &subject, text, None);
            }
        }
    }

    /// Reports endpoints of this host whose interface does not exist. Container runtimes that do not report
    /// the end of a container leave such endpoints.
    fn interfaces(&mut self) {
        let Some(interfaces) = &self.evidence.interfaces else { return };
        let lost = |endpoint: &&super::Endpoint| {
            endpoint.active
                && self.evidence.host.as_deref() == Some(&endpoint.host)
                && !interfaces.contains(&endpoint.interface)
        };
        let lost: Vec<(String, String)> = self
            .state
            .endpoints
            .iter()
            .filter(lost)
            .map(|endpoint| {
                let nets: Vec<String> = endpoint.nets.iter().map(|net| net.addr().to_string()).collect();
                let text = format!(
                    "it is active with {}, and there is no interface {} on {}: its workload is gone and was \
                     not deleted; tortie store rm deletes the endpoint, and its addresses are then leaked \
                     ones",
                    if nets.is_empty() { "no address".to_owned() } else { nets.join(", ") },
                    endpoint.interface,
                    endpoint.host
                );
                (endpoint.key.clone(), text)
            })
            .collect();
        for (key, text) in lost {
            self.add_finding(Kind::NoInterface, &key, text, None);
        }
    }

    /// Returns true if the block exists but cannot be parsed, so that no conclusion about its addresses is
    /// possible.
    fn unreadable(&self, block: &Cidr) -> bool {
        let key = Keyspace::Global.block(block);
        self.state.unreadable.iter().any(|(unreadable, _)| *unreadable == key)
    }

    fn blocks(&mut self) {
        let mut outer: Option<Cidr> = None;
        for (cidr, stored) in &self.state.blocks {
            match outer.filter(|outer| outer.covers(cidr)) {
                Some(outer) => {
                    let text = format!("it is inside block {outer}: their addresses may be allocated twice");
                    self.add_finding(Kind::Duplicate, &cidr.to_string(), text, None);
                }
                None => outer = Some(*cidr),
            }
            let block = &stored.value;
            match block.affinity() {
                BlockAffinity::None if block.is_empty() => {
                    let text = "no host owns it and no endpoint uses it".to_owned();
                    self.add_finding(
                        Kind::Ownerless,
                        &cidr.to_string(),
                        text,
                        Some(Repair::ClearOwner { block: *cidr, owner: None }),
                    );
                }
                BlockAffinity::Host(owner) if self.is_gone(owner) => {
                    let text = format!("its owner {owner} is no longer a host of the cluster");
                    let fix = Repair::ClearOwner { block: *cidr, owner: Some(owner.clone()) };
                    self.add_finding(Kind::Ownerless, &cidr.to_string(), text, Some(fix));
                }
                BlockAffinity::Host(owner)
                    if !self.state.affinities.contains_key(&(owner.clone(), *cidr)) =>
                {
                    let text = format!(
                        "block {cidr} names {owner}, which has no affinity to it: no host announces it"
                    );
                    let fix = Repair::Affinity { host: owner.clone(), block: *cidr };
                    self.add_finding(Kind::Affinity, &format!("{owner} {cidr}"), text, Some(fix));
                }
                _ => {}
            }
        }
    }

    fn handles(&mut self) {
        let mut held: BTreeMap<&str, BTreeMap<Cidr, u32>> = BTreeMap::new();
        for (cidr, stored) in &self.state.blocks {
            for (_, attribute) in stored.value.allocated() {
                if let Some(handle) = &attribute.handle {
                    *held.entry(handle).or_default().entry(*cidr).or_default() += 1;
                }
            }
        }
        let ids: BTreeSet<&str> =
            held.keys().copied().chain(self.state.handles.keys().map(String::as_str)).collect();
        let none = BTreeMap::new();
        for id in ids {
            let has = held.get(id).unwrap_or(&none);
            let says = self.state.handles.get(id).map_or(&none, |stored| &stored.value.blocks);
            if has == says || says.keys().any(|block| self.unreadable(block)) {
                continue;
            }
            let blocks: BTreeSet<Cidr> = has.keys().chain(says.keys()).copied().collect();
            let wrong = |block: &&Cidr| has.get(block) != says.get(block);
            let count = |map: &BTreeMap<Cidr, u32>, block| map.get(block).copied().unwrap_or(0);
            let list: Vec<String> = blocks
                .iter()
                .filter(wrong)
                .map(|block| format!("{} in {block}, which has {}", count(says, block), count(has, block)))
                .collect();
            let text = format!("it counts {}", list.join("; "));
            let fix = Repair::Handle { handle: id.to_owned(), blocks: blocks.into_iter().collect() };
            self.add_finding(Kind::Handle, id, text, Some(fix));
        }
    }

    fn affinities(&mut self) {
        for ((host, cidr), stored) in &self.state.affinities {
            let state = stored.value.state;
            let text = match self.state.blocks.get(cidr).map(|block| block.value.affinity()) {
                None if self.unreadable(cidr) => continue,
                None => format!("{host} has an affinity to block {cidr}, which does not exist"),
                Some(BlockAffinity::Host(owner)) if owner == host => match state {
                    Some(AffinityState::Pending) => format!("{host} did not complete its claim of {cidr}"),
                    Some(AffinityState::PendingDeletion) => {
                        format!("{host} began to release {cidr} and did not complete that")
                    }
                    None | Some(AffinityState::Confirmed) => continue,
                },
                Some(BlockAffinity::Host(owner) | BlockAffinity::Other(owner)) => {
                    format!("{host} has an affinity to block {cidr}, whose owner is {owner}")
                }
                Some(BlockAffinity::None) => {
                    format!("{host} has an affinity to block {cidr}, which has no owner")
                }
            };
            let fix = Repair::Affinity { host: host.clone(), block: *cidr };
            self.add_finding(Kind::Affinity, &format!("{host} {cidr}"), text, Some(fix));
        }
    }
}
