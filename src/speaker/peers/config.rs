//! Converts a peer of the intent to the configuration of the BGP core.

use std::sync::Arc;

use tortie_bgp::wire::Role;
use tortie_bgp::{ADD_PATH_MAX, Dial, Family, NextHopMode, PeerConfig, PrefixLimit};

use tortie_engine::routing::{self, AddPath, PeerIntent};

use crate::speaker::policy::Classes;

// Every number of paths that the store accepts can be sent.
const _: () = assert!(AddPath::MOST == ADD_PATH_MAX);

/// Returns the configuration of a peer of the intent.
pub(crate) fn config(intent: &PeerIntent, name: Arc<str>, classes: &Classes) -> PeerConfig {
    let mut families = Vec::with_capacity(2);
    if intent.ipv4 {
        families.push(Family::Ipv4Unicast);
    }
    if intent.ipv6 {
        families.push(Family::Ipv6Unicast);
    }
    let mut config = PeerConfig::new(intent.remote, intent.asn);
    config.local = intent.local;
    config.local_asn = intent.local_asn;
    config.families = families;
    config.dial = match intent.dial_after {
        None => Dial::Passive,
        Some(delay) if delay.is_zero() => Dial::Now,
        Some(delay) => Dial::After(delay),
    };
    config.shutdown = intent.shutdown.clone();
    config.hold_time = intent.hold_time;
    config.keepalive = intent.keepalive_time;
    config.next_hop = match intent.next_hop {
        routing::NextHopMode::Auto => NextHopMode::Auto,
        routing::NextHopMode::Own => NextHopMode::Own,
        routing::NextHopMode::Keep => NextHopMode::Keep,
    };
    config.local_v4 = intent.local_v4;
    config.local_v6 = intent.local_v6;
    config.reflector_client = intent.reflector_client;
    config.allow_own_as = intent.allow_local_as;
    config.restart_time = Some(intent.restart_time);
    config.long_lived_restart_time = intent.long_lived_restart_time;
    config.extended_messages = intent.extended_messages;
    config.add_path_receive = intent.add_path.as_ref().is_some_and(|paths| paths.receive);
    config.add_path_send = intent.add_path.as_ref().map_or(0, |paths| paths.send);
    let limits = intent.max_prefixes.as_ref();
    config.max_prefixes = limits.and_then(|limits| {
        let mut limit = PrefixLimit::new(limits.limit?);
        limit.warn = limits.warn.or(limit.warn).filter(|warn| *warn > 0);
        limit.restart = limits.restart.unwrap_or(limit.restart);
        Some(limit)
    });
    config.max_prefixes_out = limits.and_then(|limits| limits.out);
    config.send_hold_time = intent.send_hold_time;
    config.policy_class = classes.of(&intent.policy);
    config.role = intent.role.map(role);
    config.role_strict = intent.role_strict;
    // The gates of `routing` are the policy of every configured peer (RFC 8212).
    config.ebgp_policy = true;
    config.name = name;
    config
}

fn role(role: routing::Role) -> Role {
    match role {
        routing::Role::Provider => Role::Provider,
        routing::Role::Customer => Role::Customer,
        routing::Role::Peer => Role::Peer,
        routing::Role::RsServer => Role::RouteServer,
        routing::Role::RsClient => Role::RouteServerClient,
    }
}
