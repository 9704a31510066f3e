//! Evaluates the stages of a packet's path in the order of the kernel rules.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;

use tortie_config::Dialect;
use tortie_config::key::EndpointKey;
use tortie_config::resource::{Failsafe, HostAction};
use tortie_net::Cidr;

use super::types::{Flow, Path, Place, Reason, Routes, Stage, State, Step};
use crate::policy::hosts::{self, HostInterfaces};
use crate::policy::nat::Floating;
use crate::policy::types::{Direction, EndpointPolicy, HostPolicy, Ruleset, Stages, Tier, WorkloadPolicy};
use crate::policy::verdict::{Packet, Verdict};
use crate::policy::{Globals, HostServices};

const IPIP: u8 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const TUNNEL: &str = "tunl0";
const VXLAN: &str = "vxlan.calico";
const VXLAN_V6: &str = "vxlan-v6.calico";
const LOOPBACK: &str = "lo";

/// Enforced rules and routes of one host.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Policies, endpoints and sets.
    pub ruleset: &'a Ruleset,
    /// Host-wide parameters.
    pub globals: &'a Globals,
    /// Host endpoint of each interface.
    pub hosts: &'a HostInterfaces,
    /// Routes that decide the output interface.
    pub routes: &'a Routes,
}

impl<'a> Node<'a> {
    /// Computes the path of a packet through this host. The cost is one pass over the host's endpoints plus
    /// the rules that the packet meets; for many packets see [`Node::prepared`].
    ///
    /// Everything outside of Tortie is assumed to let packets pass: rules of other programs, reverse path
    /// filters, sockets.
    #[must_use]
    pub fn path(&self, flow: &Flow) -> Path {
        self.prepared().path(flow)
    }

    /// Indexes the endpoints once, for the evaluation of any number of packets.
    #[must_use]
    pub fn prepared(&self) -> Prepared<'a> {
        Prepared { node: *self, workloads: workloads(self.ruleset), floating: Floating::of(self.ruleset) }
    }
}

/// A host with indexed endpoints.
#[derive(Debug, Clone)]
pub struct Prepared<'a> {
    node: Node<'a>,
    workloads: OfInterface<'a>,
    floating: Floating,
}

impl Prepared<'_> {
    /// Computes the same path as [`Node::path`]. The cost is the rules that the packet meets.
    #[must_use]
    pub fn path(&self, flow: &Flow) -> Path {
        let mut evaluation = PathEvaluation {
            node: self.node,
            workloads: &self.workloads,
            floating: &self.floating,
            packet: flow.packet,
            state: (!flow.is_never_tracked()).then_some(flow.state),
            early: false,
            steps: Vec::new(),
        };
        let end = match &flow.from {
            Place::Interface(name) => evaluation.incoming(name),
            Place::Host => evaluation.outgoing(),
        };
        Path {
            verdict: if end.is_continue() { Verdict::Allow } else { Verdict::Deny },
            packet: evaluation.packet,
            untracked: evaluation.state.is_none(),
            steps: evaluation.steps,
        }
    }
}

type OfInterface<'a> = BTreeMap<&'a str, (&'a EndpointKey, &'a WorkloadPolicy)>;

/// Returns the endpoint of each workload interface. If two claim one, an active endpoint takes precedence,
/// then the smaller key.
fn workloads(ruleset: &Ruleset) -> OfInterface<'_> {
    let mut found = OfInterface::new();
    for (key, endpoint) in &ruleset.endpoints {
        if let EndpointPolicy::Workload(workload) = &**endpoint {
            let kept = found.entry(workload.interface.as_str()).or_insert((key, workload));
            if workload.active && !kept.1.active {
                *kept = (key, workload);
            }
        }
    }
    found
}

/// `Break` means that the packet was dropped.
type StageResult = ControlFlow<()>;

struct PathEvaluation<'a> {
    node: Node<'a>,
    workloads: &'a OfInterface<'a>,
    floating: &'a Floating,
    packet: Packet,
    /// Connection tracking state; `None` if the packet is not tracked.
    state: Option<State>,
    /// True if untracked or pre-DNAT policy has accepted the packet.
    early: bool,
    steps: Vec<Step>,
}

impl<'a> PathEvaluation<'a> {
    fn incoming(&mut self, by: &str) -> StageResult {
        self.arrive(by)?;
        if !self.dnat() {
            self.metadata();
        }
        match self.route()? {
            Place::Host => self.input(by),
            Place::Interface(out) => {
                self.forward(by, &out)?;
                self.snat(&out);
                StageResult::Continue(())
            }
        }
    }

    fn outgoing(&mut self) -> StageResult {
        let first = interface(self.route()?);
        self.untracked(&first, Direction::Outbound)?;
        // DNAT may change the output interface. Policy sees the new destination, but the interface chosen
        // before DNAT.
        let out = if self.dnat() { interface(self.route()?) } else { first.clone() };
        self.output(&first)?;
        self.snat(&out);
        if &*out == LOOPBACK {
            self.early = false;
            self.arrive(LOOPBACK)?;
            self.input(LOOPBACK)?;
        }
        StageResult::Continue(())
    }

    /// Evaluates the stages at the input interface: the source check of workloads, or untracked and pre-DNAT
    /// policy.
    fn arrive(&mut self, by: &str) -> StageResult {
        if self.is_workload(by) {
            return self.source(by);
        }
        self.untracked(by, Direction::Inbound)?;
        self.pre_dnat(by)
    }

    fn source(&mut self, by: &str) -> StageResult {
        if self.is_left_alone() {
            return self.drop(Stage::Source, None, Reason::NoIpv6);
        }
        // Workload interfaces have `route_localnet` set, so without this check workloads could reach services
        // on the host's loopback.
        if Cidr::v4(Ipv4Addr::LOCALHOST, 8).contains(self.packet.dst) {
            return self.drop(Stage::Source, None, Reason::Loopback);
        }
        let Some((key, workload)) = self.workloads.get(by).copied() else {
            return self.drop(Stage::Source, None, Reason::UnknownInterface);
        };
        let src = self.packet.src;
        let link_local = Cidr::v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);
        if !workload.active {
            self.drop(Stage::Source, Some(key), Reason::Inactive)
        } else if workload.sources().any(|net| net.contains(src)) {
            self.pass(Stage::Source, Some(key), Reason::OwnSource)
        } else if link_local.contains(src) || src == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            self.pass(Stage::Source, Some(key), Reason::Neighbour)
        } else if self.node.globals.services.is_some() && HostServices::is_first_request(&self.packet) {
            self.pass(Stage::Source, Some(key), Reason::HostService)
        } else {
            self.drop(Stage::Source, Some(key), Reason::Spoofed)
        }
    }

    fn untracked(&mut self, at: &str, direction: Direction) -> StageResult {
        let own = if direction == Direction::Inbound { self.packet.dst } else { self.packet.src };
        if self.node.globals.vxlan_of(&self.packet).is_some() && self.node.routes.local.contains(&own) {
            self.state = None;
        }
        // Untracked policies of the host endpoint of all interfaces do not apply, as in Calico 3.
        let own = self.node.hosts.get(at);
        let host = self.host(at).filter(|(key, _)| own == Some(key));
        let Some((key, host)) = host.filter(|_| !self.is_left_alone()) else {
            return StageResult::Continue(());
        };
        let chains = match direction {
            Direction::Inbound => &host.untracked_inbound,
            Direction::Outbound => &host.untracked_outbound,
        };
        if chains.is_empty() {
            return StageResult::Continue(());
        }
        if self.is_discovery() {
            return self.pass(Stage::Untracked, Some(key), Reason::Neighbour);
        }
        // Applies to replies too: if one direction of a connection were untracked, the other would be
        // invalid.
        if self.is_failsafe(direction, false) || self.is_failsafe(direction, true) {
            return self.pass(Stage::Untracked, Some(key), Reason::Failsafe);
        }
        let decision = self.node.ruleset.decide_early(self.node.globals.dialect, chains, &self.packet);
        if decision.verdict == Some(Verdict::Allow) {
            self.early = true;
            self.state = None;
        }
        self.step(Stage::Untracked, Some(key), decision.verdict, Reason::Policy(decision))
    }

    fn pre_dnat(&mut self, by: &str) -> StageResult {
        let established = matches!(self.state, Some(State::Established { .. }));
        if established || self.early || self.is_left_alone() {
            return StageResult::Continue(());
        }
        // An endpoint of the interface takes the place of that of all interfaces only where it has such
        // policies itself, as in Felix.
        let has_policies = |(_, host): &(&EndpointKey, &HostPolicy)| !host.pre_dnat.is_empty();
        let all = || self.host_of(hosts::all_interfaces(self.node.hosts, self.node.globals)?);
        let Some((key, host)) = self.host(by).filter(has_policies).or_else(|| all().filter(has_policies))
        else {
            return StageResult::Continue(());
        };
        if self.is_discovery() {
            return self.pass(Stage::PreDnat, Some(key), Reason::Neighbour);
        }
        if self.is_failsafe(Direction::Inbound, false) {
            return self.pass(Stage::PreDnat, Some(key), Reason::Failsafe);
        }
        let decision =
            self.node.ruleset.decide_early(self.node.globals.dialect, &host.pre_dnat, &self.packet);
        self.early = decision.verdict == Some(Verdict::Allow);
        self.step(Stage::PreDnat, Some(key), decision.verdict, Reason::Policy(decision))
    }

    /// Translates a floating destination. Returns true if the destination changed.
    fn dnat(&mut self) -> bool {
        let outside = self.packet.dst;
        let Some(inside) = self.floating.inward.get(&outside).copied() else { return false };
        if !self.is_translated() {
            return false;
        }
        self.packet.dst = inside;
        self.steps.push(Step {
            stage: Stage::Dnat,
            endpoint: None,
            verdict: None,
            reason: Reason::Translated(outside, inside),
        });
        true
    }

    /// Translates the address at which workloads expect OpenStack's metadata.
    fn metadata(&mut self) {
        let services = self.node.globals.services.as_ref().filter(|_| self.is_translated());
        let Some((addr, port)) = services.and_then(|services| services.metadata_of(&self.packet)) else {
            return;
        };
        let outside = std::mem::replace(&mut self.packet.dst, addr.into());
        if let Some((_, to)) = &mut self.packet.ports {
            *to = port;
        }
        let reason = Reason::Translated(outside, addr.into());
        self.steps.push(Step { stage: Stage::Dnat, endpoint: None, verdict: None, reason });
    }

    fn snat(&mut self, out: &str) {
        if !self.is_translated() {
            return;
        }
        let Packet { src, dst, .. } = self.packet;
        let globals = self.node.globals;
        let reason = match self.floating.outward.get(&src).copied() {
            Some(outside) if src == dst => {
                self.packet.src = outside;
                Reason::Translated(src, outside)
            }
            _ if globals.masquerades(src, dst) => Reason::Masquerade,
            _ if out == if src.is_ipv4() { VXLAN } else { VXLAN_V6 }
                && (src.is_ipv4() || globals.ipv6)
                && self.node.routes.local.contains(&src)
                && let Some(own) = globals.vxlan.as_ref().and_then(|vxlan| vxlan.addr(src.is_ipv4()))
                && own != src =>
            {
                Reason::Masquerade
            }
            _ if out == TUNNEL
                && globals.tunnel_addr.is_some_and(|own| IpAddr::V4(own) != src)
                && src.is_ipv4()
                && self.node.routes.local.contains(&src) =>
            {
                Reason::Masquerade
            }
            _ => return,
        };
        self.steps.push(Step { stage: Stage::Snat, endpoint: None, verdict: None, reason });
    }

    fn route(&mut self) -> ControlFlow<(), Place> {
        match self.node.routes.place(self.packet.dst) {
            Some(place) => {
                let reason = Reason::Routed(place.clone());
                self.steps.push(Step { stage: Stage::Route, endpoint: None, verdict: None, reason });
                ControlFlow::Continue(place)
            }
            None => {
                self.drop(Stage::Route, None, Reason::NoRoute)?;
                ControlFlow::Break(())
            }
        }
    }

    fn input(&mut self, by: &str) -> StageResult {
        let workload = self.is_workload(by);
        let tunnelled = self.packet.protocol == IPIP && self.packet.src.is_ipv4();
        let src = self.packet.src;
        if self.early {
            self.pass(Stage::HostInbound, None, Reason::AcceptedEarlier)?;
        } else if let Some(hosts) = self.node.globals.ipip_hosts.as_ref().filter(|_| tunnelled) {
            if hosts.iter().any(|hosts| hosts.contains(src)) {
                self.pass(Stage::Tunnel, None, Reason::KnownTunnel)?;
            } else {
                self.drop(Stage::Tunnel, None, Reason::UnknownTunnel)?;
            }
        } else if let Some(vxlan) = self.node.globals.vxlan_of(&self.packet) {
            if vxlan.hosts.iter().any(|hosts| hosts.contains(src)) {
                self.pass(Stage::Tunnel, None, Reason::KnownVxlan)?;
            } else {
                self.drop(Stage::Tunnel, None, Reason::UnknownVxlan)?;
            }
        } else if workload && self.is_neighbour() {
            self.pass(Stage::FromWorkload, None, Reason::Neighbour)?;
        } else if workload && self.is_for_services() {
            self.pass(Stage::FromWorkload, None, Reason::HostService)?;
        } else if workload {
            self.sender(by)?;
        } else if let Some((key, _)) = self.discovers(by) {
            self.pass(Stage::HostInbound, Some(key), Reason::Neighbour)?;
        } else {
            self.host_policy(by, Direction::Inbound)?;
        }
        if workload { self.default_action() } else { StageResult::Continue(()) }
    }

    fn default_action(&mut self) -> StageResult {
        let action = self.node.globals.to_host;
        if matches!(self.state, Some(State::Established { .. })) {
            self.pass(Stage::ToHost, None, Reason::Established)
        } else if self.is_neighbour() {
            self.pass(Stage::ToHost, None, Reason::Neighbour)
        } else if self.is_for_services() {
            self.pass(Stage::ToHost, None, Reason::HostService)
        } else if action == HostAction::Drop {
            self.drop(Stage::ToHost, None, Reason::ToHost(action))
        } else {
            self.pass(Stage::ToHost, None, Reason::ToHost(action))
        }
    }

    fn forward(&mut self, by: &str, out: &str) -> StageResult {
        if self.node.globals.dialect == Dialect::V3 {
            return self.forward_by_tiers(by, out);
        }
        let (from, to) = (self.is_workload(by), self.is_workload(out));
        if from {
            self.forwarded_by_workload(by)?;
        } else if !to && self.early {
            self.pass(Stage::HostInbound, None, Reason::AcceptedEarlier)?;
        } else if !to {
            self.host_policy(by, Direction::Inbound)?;
        }
        if to {
            self.receiver(out)
        } else if from {
            StageResult::Continue(())
        } else {
            self.host_policy(out, Direction::Outbound)
        }
    }

    /// Evaluates the stages of a forwarded packet in a Calico 3 store: host endpoints have policies for it,
    /// whether or not it comes from or goes to a workload.
    fn forward_by_tiers(&mut self, by: &str, out: &str) -> StageResult {
        if self.early {
            self.pass(Stage::ForwardInbound, None, Reason::AcceptedEarlier)?;
        } else {
            self.forward_policy(Stage::ForwardInbound, by, |host| &host.forward_inbound)?;
        }
        self.forward_policy(Stage::ForwardOutbound, out, |host| &host.forward_outbound)?;
        if self.is_workload(by) {
            self.forwarded_by_workload(by)?;
        }
        if self.is_workload(out) { self.receiver(out) } else { StageResult::Continue(()) }
    }

    fn forwarded_by_workload(&mut self, by: &str) -> StageResult {
        if self.node.globals.vxlan_of(&self.packet).is_some_and(|vxlan| !vxlan.from_workloads) {
            self.drop(Stage::FromWorkload, None, Reason::VxlanOfWorkload)?;
        }
        self.sender(by)
    }

    fn forward_policy(&mut self, stage: Stage, at: &str, of: fn(&HostPolicy) -> &Vec<Tier>) -> StageResult {
        let Node { ruleset, globals, hosts, .. } = self.node;
        let key = hosts::forward_endpoint(hosts, ruleset, globals, at).filter(|_| !self.is_left_alone());
        let Some((key, host)) = key.and_then(|key| self.host_of(key)) else {
            return StageResult::Continue(());
        };
        if matches!(self.state, Some(State::Established { .. })) {
            self.pass(stage, Some(key), Reason::Established)
        } else if self.state == Some(State::Invalid) && globals.drop_invalid {
            self.drop(stage, Some(key), Reason::Invalid)
        } else {
            let decision = ruleset.decide_forward(of(host), &self.packet);
            self.step(stage, Some(key), decision.verdict, Reason::Policy(decision))
        }
    }

    fn output(&mut self, out: &str) -> StageResult {
        let Packet { src, dst, protocol, .. } = self.packet;
        let known = |hosts: &std::collections::BTreeSet<Cidr>| hosts.iter().any(|hosts| hosts.contains(dst));
        if self.is_workload(out) {
            match self.workloads.get(out).copied() {
                Some((key, of)) if !of.active => self.drop(Stage::HostOutbound, Some(key), Reason::Inactive),
                _ => self.pass(Stage::HostOutbound, None, Reason::OwnWorkload),
            }
        } else if protocol == IPIP
            && self.node.globals.ipip_hosts.as_ref().is_some_and(known)
            && self.node.routes.local.contains(&src)
        {
            self.pass(Stage::Tunnel, None, Reason::KnownTunnel)
        } else if self.node.routes.local.contains(&src)
            && let Some(vxlan) = self.node.globals.vxlan_of(&self.packet)
            && vxlan.hosts.iter().any(|hosts| hosts.contains(dst))
        {
            self.pass(Stage::Tunnel, None, Reason::KnownVxlan)
        } else if self.early {
            self.pass(Stage::HostOutbound, None, Reason::AcceptedEarlier)
        } else if let Some((key, _)) = self.discovers(out) {
            self.pass(Stage::HostOutbound, Some(key), Reason::Neighbour)
        } else {
            self.host_policy(out, Direction::Outbound)
        }
    }

    fn sender(&mut self, by: &str) -> StageResult {
        match self.workloads.get(by).copied() {
            Some((key, workload)) => self.workload(Stage::FromWorkload, key, workload, &workload.outbound),
            None => self.drop(Stage::FromWorkload, None, Reason::UnknownInterface),
        }
    }

    fn receiver(&mut self, out: &str) -> StageResult {
        if self.is_left_alone() {
            return self.drop(Stage::ToWorkload, None, Reason::NoIpv6);
        }
        match self.workloads.get(out).copied() {
            Some((key, workload)) => self.workload(Stage::ToWorkload, key, workload, &workload.inbound),
            None => self.drop(Stage::ToWorkload, None, Reason::UnknownInterface),
        }
    }

    fn workload(
        &mut self,
        stage: Stage,
        key: &EndpointKey,
        of: &WorkloadPolicy,
        stages: &Stages,
    ) -> StageResult {
        if of.active {
            self.stages(stage, key, stages, None)
        } else {
            self.drop(stage, Some(key), Reason::Inactive)
        }
    }

    fn host_policy(&mut self, at: &str, direction: Direction) -> StageResult {
        let (stage, of): (_, fn(&HostPolicy) -> &Stages) = match direction {
            Direction::Inbound => (Stage::HostInbound, |host| &host.inbound),
            Direction::Outbound => (Stage::HostOutbound, |host| &host.outbound),
        };
        if self.is_left_alone() {
            return self.pass(stage, None, Reason::NoEndpoint);
        }
        match self.host(at) {
            Some((key, host)) => self.stages(stage, key, of(host), Some(direction)),
            None => self.pass(stage, None, Reason::NoEndpoint),
        }
    }

    /// Evaluates tiers and profiles of an endpoint. `failsafe` is the direction whose failsafe ports stay
    /// open.
    fn stages(
        &mut self,
        at: Stage,
        key: &EndpointKey,
        of: &Stages,
        failsafe: Option<Direction>,
    ) -> StageResult {
        if matches!(self.state, Some(State::Established { .. })) {
            self.pass(at, Some(key), Reason::Established)
        } else if self.state == Some(State::Invalid) && self.node.globals.drop_invalid {
            self.drop(at, Some(key), Reason::Invalid)
        } else if failsafe.is_some_and(|direction| self.is_failsafe(direction, false)) {
            self.pass(at, Some(key), Reason::Failsafe)
        } else {
            let decision = self.node.ruleset.decide(of, &self.packet);
            self.step(at, Some(key), decision.verdict, Reason::Policy(decision))
        }
    }

    fn host(&self, at: &str) -> Option<(&'a EndpointKey, &'a HostPolicy)> {
        let Node { ruleset, globals, hosts, .. } = self.node;
        self.host_of(hosts::endpoint_of(hosts, ruleset, globals, at)?)
    }

    fn host_of(&self, key: &'a EndpointKey) -> Option<(&'a EndpointKey, &'a HostPolicy)> {
        match &**self.node.ruleset.endpoints.get(key)? {
            EndpointPolicy::Host(host) => Some((key, host)),
            EndpointPolicy::Workload(_) => None,
        }
    }

    fn is_workload(&self, interface: &str) -> bool {
        self.node.globals.is_workload(interface)
    }

    /// Returns true for IPv6 while IPv6 support is off.
    fn is_left_alone(&self) -> bool {
        !self.node.globals.ipv6 && self.packet.src.is_ipv6()
    }

    /// Returns true if the packet is for a service of the host to its workloads.
    fn is_for_services(&self) -> bool {
        self.node.globals.services.as_ref().is_some_and(|services| services.has(&self.packet))
    }

    /// Returns true if connection tracking translates the packet's addresses in the direction of the first
    /// packet.
    fn is_translated(&self) -> bool {
        matches!(self.state, Some(State::New | State::Established { reply: false })) && !self.is_left_alone()
    }

    /// Returns true if the packet goes to a failsafe port of this direction, or, with `reply`, comes from a
    /// failsafe port of the other direction.
    fn is_failsafe(&self, direction: Direction, reply: bool) -> bool {
        let globals = self.node.globals;
        let ports: &[Failsafe] = match (direction, reply) {
            (Direction::Inbound, false) | (Direction::Outbound, true) => &globals.failsafe_inbound,
            (Direction::Outbound, false) | (Direction::Inbound, true) => &globals.failsafe_outbound,
        };
        let Some((src, dst)) = self.packet.ports else { return false };
        let port = if reply { src } else { dst };
        let other_end = match direction {
            Direction::Inbound => self.packet.src,
            Direction::Outbound => self.packet.dst,
        };
        ports.iter().any(|open| {
            open.port == port
                && self.packet.protocol == if open.udp { UDP } else { TCP }
                && open.net.is_none_or(|net| net.contains(other_end))
        })
    }

    /// Returns true for multicast listener and neighbour discovery, except redirects and router
    /// advertisements.
    fn is_neighbour(&self) -> bool {
        let Packet { src, protocol, icmp, .. } = self.packet;
        let of_type = icmp.is_some_and(|(kind, _)| matches!(kind, 130..=133 | 135 | 136));
        self.node.globals.ipv6 && src.is_ipv6() && protocol == ICMPV6 && of_type
    }

    /// Returns true for messages that an IPv6 host must send and receive to be reachable at all (RFC 4890,
    /// section 4.4.1): multicast listener, router and neighbour discovery.
    fn is_discovery(&self) -> bool {
        let Packet { src, protocol, icmp, .. } = self.packet;
        let of_type = icmp.is_some_and(|(kind, _)| matches!(kind, 130..=136 | 143));
        self.node.globals.ipv6 && src.is_ipv6() && protocol == ICMPV6 && of_type
    }

    /// Returns the host endpoint of an interface if its policy is skipped for the packet, which is a
    /// discovery message.
    fn discovers(&self, at: &str) -> Option<(&'a EndpointKey, &'a HostPolicy)> {
        self.host(at).filter(|_| self.is_discovery())
    }

    fn pass(&mut self, stage: Stage, endpoint: Option<&EndpointKey>, reason: Reason) -> StageResult {
        self.step(stage, endpoint, Some(Verdict::Allow), reason)
    }

    fn drop(&mut self, stage: Stage, endpoint: Option<&EndpointKey>, reason: Reason) -> StageResult {
        self.step(stage, endpoint, Some(Verdict::Deny), reason)
    }

    fn step(
        &mut self,
        stage: Stage,
        endpoint: Option<&EndpointKey>,
        verdict: Option<Verdict>,
        reason: Reason,
    ) -> StageResult {
        self.steps.push(Step { stage, endpoint: endpoint.cloned(), verdict, reason });
        if verdict == Some(Verdict::Deny) { StageResult::Break(()) } else { StageResult::Continue(()) }
    }
}

fn interface(place: Place) -> Box<str> {
    match place {
        Place::Host => LOOPBACK.into(),
        Place::Interface(name) => name,
    }
}
