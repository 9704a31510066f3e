//! Concludes the cause of a session that is down from the evidence. Pure functions.

use super::peer::{Path, PeerEvidence, RemoteStatus};
use crate::api::bgp::PeerError;
use crate::api::codes;
use crate::api::explain::Certainty;
use crate::api::span;
use crate::speaker::connect_failure;
use tortie_config::counted;

/// A cause with its code, certainty and suggested fix.
pub(super) struct Cause {
    pub(super) code: &'static str,
    pub(super) text: String,
    pub(super) certainty: Certainty,
    pub(super) fix: Vec<String>,
}

impl Cause {
    fn certain(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), certainty: Certainty::Certain, fix: Vec::new() }
    }

    fn implied(code: &'static str, text: impl Into<String>) -> Self {
        Self { certainty: Certainty::Implied, ..Self::certain(code, text) }
    }

    fn with(mut self, fix: impl Into<String>) -> Self {
        self.fix.push(fix.into());
        self
    }
}

/// Returns the cause of the session's state.
pub(super) fn cause(e: &PeerEvidence) -> Cause {
    let p = &e.peer;
    if p.state == "Established" {
        return slow_peer(e).unwrap_or_else(|| Cause::certain("ok", "the session is established"));
    }
    if let Some(text) = &p.shutdown {
        let reason = if text.is_empty() { String::new() } else { format!(" ({text})") };
        return Cause::certain(
            "peer-shutdown-here",
            format!("the peer's value in the store shuts the session down{reason}"),
        )
        .with("remove `shutdown` from the peer's value");
    }
    if let Some(text) = &e.problem {
        return Cause::certain("peer-configuration", text.clone());
    }
    match &e.path {
        Path::Own => {
            return Cause::certain("own-address", "the peer's address is one of this host's interfaces");
        }
        Path::None if !was_reached(e) => {
            return Cause::certain("no-route", format!("this host has no route to {}", p.address))
                .with(format!("ip route get {}", p.address));
        }
        Path::Via { interface, up: false, .. } => {
            return Cause::certain("link-down", format!("interface {interface} is down or has no carrier"))
                .with(format!("ip link show {interface}"));
        }
        _ => {}
    }
    // TCP accepts a connection before it checks keys and TTLs of the later segments.
    if matches!(p.state.as_str(), "OpenSent" | "OpenConfirm")
        && let Some(cause) = tcp_drops(e)
    {
        return cause;
    }
    if let Some(left) = e.attempts.refused {
        let failed =
            p.last_error.as_ref().map_or_else(String::new, |error| format!("; the last: {}", error.text));
        return Cause::certain(
            "damped",
            format!(
                "connections of the peer are refused for {} more, because too many failed in a row{failed}",
                span(left.as_secs())
            ),
        )
        .with("remove the cause first; then tortie bgp reset accepts connections at once");
    }
    let Some(error) = &p.last_error else { return not_tried(e) };
    let cause = of_last_end(e, error);
    // No route was found although the attempt met the peer: the route is gone since, or was not visible. The
    // evidence is incomplete in both cases.
    if matches!(e.path, Path::None) { Cause { certainty: Certainty::Implied, ..cause } } else { cause }
}

/// True if the peer answered the last attempt: then a route to it exists, even if none was found.
fn was_reached(e: &PeerEvidence) -> bool {
    let Some(error) = &e.peer.last_error else { return false };
    match error.code.as_str() {
        "connect_failed" => {
            let (code, _) = connect_failure(&error.text);
            code == "connection-refused"
        }
        "notification_sent" | "notification_received" | "tcp_closed" | "collision" => e.attempts.failed > 0,
        _ => false,
    }
}

/// Returns the cause that the end of the last session or attempt implies.
fn of_last_end(e: &PeerEvidence, error: &PeerError) -> Cause {
    let p = &e.peer;
    if let Some((code, sub)) = e.notification {
        return from_notification(e, code, sub, error.code == "notification_received", &error.text);
    }
    match error.code.as_str() {
        "connect_failed" => connect_failed(e, &error.text),
        "hold_timer" => Cause::certain(
            "hold-timer",
            "no message came from the peer for the whole hold time: its process hangs, or packets are lost \
             on the path",
        )
        .with(format!("ping {}", p.address)),
        "send_hold_timer" => Cause::certain(
            "send-hold-timer",
            "the peer stopped reading: nothing could be sent for too long (RFC 9687)",
        ),
        "tcp_closed" => tcp_closed(e, &error.text),
        "bfd" => Cause::certain("bfd", format!("BFD lost the peer: {}", error.text)),
        "link_down" => Cause::certain("link-down", error.text.clone()),
        "admin" => Cause::certain("admin-reset", format!("an operator reset the session: {}", error.text)),
        "config" => Cause::certain("config", "its configuration changed; it is set up again by itself"),
        "collision" => Cause::certain(
            "collision",
            "one of two simultaneous connections was closed (RFC 4271 6.8); the other one stays",
        ),
        _ => Cause { certainty: Certainty::Unknown, ..Cause::certain("unknown", error.text.clone()) },
    }
}

/// Returns the cause for an established session whose peer stopped reading.
fn slow_peer(e: &PeerEvidence) -> Option<Cause> {
    let (_, text) = e.status.iter().find(|(code, _)| *code == codes::SLOW_PEER.name)?;
    let remote = remote_name(e);
    Some(
        Cause::implied(
            "slow-peer",
            format!(
                "the session is established, but {remote} {text}: its BGP process hangs or is overloaded, \
                 or large packets do not reach it"
            ),
        )
        .with(format!("on {remote}: check that its BGP process runs and is not blocked"))
        .with(format!("ping -M do -s 1472 {}", e.peer.address)),
    )
}

fn not_tried(e: &PeerEvidence) -> Cause {
    if !e.attempts.connects {
        let text = "this end waits for the peer to connect, and no connection has come";
        return match e.remote {
            RemoteStatus::Absent => Cause::implied("passive", format!("{text}: no agent runs there")),
            _ => Cause::implied("passive", text),
        };
    }
    Cause {
        certainty: Certainty::Unknown,
        ..Cause::certain(
            "not-tried",
            "no connection attempt has ended yet: run this command again in a moment",
        )
    }
}

/// Returns the name of the remote side for texts.
fn remote_name(e: &PeerEvidence) -> String {
    if e.peer.name == e.peer.address { "the router".to_owned() } else { e.peer.name.clone() }
}

fn connect_failed(e: &PeerEvidence, text: &str) -> Cause {
    let (p, remote) = (&e.peer, remote_name(e));
    let silent = matches!(&e.path, Path::Via { neighbour: Some(n), .. } if n.is_silent());
    let (code, _) = connect_failure(text);
    match code {
        "connection-refused" => {
            let text = match &e.remote {
                RemoteStatus::Absent => format!(
                    "{remote} answers, but no process listens on tcp/{}: its agent does not run (it has no \
                     status key)",
                    p.port
                ),
                RemoteStatus::Key { ready, .. } => format!(
                    "{remote} refuses tcp/{} although its agent {}: the agent listens elsewhere, or a \
                     firewall there rejects the connection",
                    p.port,
                    if *ready { "runs" } else { "runs and is not ready" }
                ),
                _ => format!("{remote} answers, but no process listens on tcp/{} (RST received)", p.port),
            };
            let fix = match e.remote {
                RemoteStatus::Router => {
                    format!("on {remote}: check that BGP runs and listens on {}", p.address)
                }
                _ => format!("on {remote}: systemctl status tortie"),
            };
            Cause::certain("connection-refused", text).with(fix)
        }
        "connect-timeout" | "host-unreachable" | "connect-failed" if silent => {
            let gateway = match &e.path {
                Path::Via { gateway: Some(gateway), interface, .. } => {
                    format!("the gateway {gateway} on {interface}")
                }
                _ => p.address.clone(),
            };
            let what = format!(
                "{gateway} does not answer ARP or neighbour discovery: it is off, or on another segment"
            );
            Cause::certain("no-neighbour", what).with(format!("ping {}", p.address))
        }
        "host-unreachable" => {
            Cause::certain("host-unreachable", text.to_owned()).with(format!("ip route get {}", p.address))
        }
        "connect-timeout" => connect_timeout(e),
        "no-local-address" => {
            let fix =
                "give the interface that address, or correct source_addr or this host's address in the store";
            Cause::certain("no-local-address", text.to_owned()).with(fix)
        }
        "no-route" => Cause::certain("no-route", text.to_owned()).with(format!("ip route get {}", p.address)),
        code => Cause::certain(code, text.to_owned()),
    }
}

/// Returns the cause if TCP of this host dropped segments. The kernel's counters cover all peers.
fn tcp_drops(e: &PeerEvidence) -> Option<Cause> {
    let remote = remote_name(e);
    if e.dropped.key > 0 {
        let here = e
            .protection
            .key
            .map_or_else(|| "none is set here".to_owned(), |key| format!("{key} is set here"));
        let text = format!(
            "no valid packet comes: TCP of this host dropped {} for their TCP key ({here}); the keys of \
             both ends differ, or one end has none",
            counted(e.dropped.key, "segment")
        );
        let fix = format!(
            "give both ends the same password; see dmesg and nstat -az 'TcpExtTCPMD5*' here and on {remote}"
        );
        return Some(Cause::implied("tcp-key", text).with(fix));
    }
    let hops = e.protection.hops.filter(|_| e.dropped.ttl > 0)?;
    let text = format!(
        "packets from {remote} arrive with too small a TTL: TCP of this host dropped {}, because \
         ttl_security accepts peers at most {} away that send TTL 255",
        counted(e.dropped.ttl, "segment"),
        counted(hops, "hop")
    );
    let fix = format!(
        "on {remote}: configure TTL security for this host; or remove ttl_security from the peer's value"
    );
    Some(Cause::implied("ttl-security", text).with(fix))
}

/// Returns the cause of a connection attempt without any answer.
fn connect_timeout(e: &PeerEvidence) -> Cause {
    let (p, remote) = (&e.peer, remote_name(e));
    if let Some(cause) = tcp_drops(e) {
        return cause;
    }
    match (e.protection.key, e.protection.hops) {
        (Some(key), _) => Cause::implied(
            "connect-timeout",
            format!(
                "SYNs get no answer. {key} is set here: with another key, or none, {remote} drops them \
                 silently; a firewall that drops tcp/{} looks the same",
                p.port
            ),
        )
        .with(format!(
            "compare the password of both ends; on {remote} the kernel counts TcpExtTCPMD5Failure (nstat)"
        )),
        (None, hops) => {
            let hops = hops.map_or(String::new(), |hops| format!(", or it is more than {hops} hops away"));
            Cause::implied(
                "connect-timeout",
                format!(
                    "SYNs get no answer: a firewall drops tcp/{}, or {remote} requires a TCP key that is \
                     not set here{hops}",
                    p.port
                ),
            )
            .with(format!(
                "on {remote}: check for a password for this host, and for a firewall that drops tcp/{}",
                p.port
            ))
        }
    }
}

fn tcp_closed(e: &PeerEvidence, text: &str) -> Cause {
    let remote = remote_name(e);
    if e.last_session.is_some() && e.attempts.failed == 0 {
        let helper = e.last_session.as_ref().is_some_and(|ended| ended.helper);
        let more =
            if helper { ": it restarts, and its routes are kept for the graceful restart" } else { "" };
        return Cause::certain("tcp-closed", format!("{remote} closed TCP without a NOTIFICATION{more}"));
    }
    Cause::implied(
        "tcp-closed",
        format!(
            "{remote} accepts the connection and closes it without a NOTIFICATION ({text}): it has no \
             neighbour with our address, or refuses us for now"
        ),
    )
    .with(match e.attempts.from {
        Some(from) => {
            format!("on {remote}: check that {from} is configured as a neighbour with AS {}", e.local_as)
        }
        None => {
            format!("on {remote}: check that this host is configured as a neighbour with AS {}", e.local_as)
        }
    })
}

/// Returns the cause that a NOTIFICATION states.
fn from_notification(e: &PeerEvidence, code: u8, sub: u8, received: bool, text: &str) -> Cause {
    let (p, remote) = (&e.peer, remote_name(e));
    let who = if received { format!("{remote} refused us") } else { format!("we refused {remote}") };
    let key = e.key.clone().unwrap_or_else(|| "the peer's value".to_owned());
    let cause = |code, what: String| Cause::certain(code, what);
    match (code, sub) {
        (2, 2) if received => cause(
            "bad-peer-as",
            format!("{who}: it expects another AS number than ours ({}): {text}", e.local_as),
        )
        .with(format!("on {remote}: set the remote AS of this host to {}", e.local_as)),
        (2, 2) => cause(
            "bad-peer-as",
            format!("{who}: this host expects AS {}, and the peer has another one: {text}", p.remote_as),
        )
        .with(format!("correct as_num in {key}, or the AS of {remote}")),
        (2, 3) => cause("bad-identifier", format!("{who}: BGP identifier: {text}"))
            .with("two speakers have the same router id: give each a different one"),
        (2, 6) => cause("unacceptable-hold-time", format!("{who}: hold time: {text}"))
            .with(format!("change hold_time in {key}")),
        (2, 7) => cause("unsupported-capability", format!("{who}: capabilities: {text}")),
        (2, 11) => cause("role-mismatch", format!("{who}: roles do not fit (RFC 9234): {text}"))
            .with(format!("change role in {key}")),
        (2, _) => cause("open-refused", format!("{who} with OPEN error {code}/{sub}: {text}")),
        (6, 1) => {
            let what = if received {
                "it accepts no more prefixes from us"
            } else {
                "it sent more prefixes than its limit"
            };
            cause("max-prefixes", format!("{who}: {what}: {text}")).with(if received {
                format!("on {remote}: raise the prefix limit for this host")
            } else {
                format!("raise max_prefixes in {key}, or reduce the prefixes that {remote} announces")
            })
        }
        (6, 2) => cause(
            "peer-shutdown",
            format!("administrative shutdown by {}: {text}", ending_side(received, &remote)),
        ),
        (6, 3) => cause("peer-deconfigured", format!("{who}: no longer configured there: {text}")),
        (6, 4) => cause(
            "admin-reset",
            format!("administrative reset by {}: {text}", ending_side(received, &remote)),
        ),
        (6, 5) => cause("connection-rejected", format!("{who}: {text}")).with(if received {
            format!("on {remote}: check that this host is configured as a neighbour with AS {}", e.local_as)
        } else {
            format!("check that {} is configured with that address", p.name)
        }),
        (6, 7) => cause(
            "collision",
            "one of two simultaneous connections was closed (RFC 4271 6.8); the other one stays".to_owned(),
        ),
        (6, 8) => cause("out-of-resources", format!("{who}: out of resources: {text}")),
        (6, 10) => cause("bfd", format!("BFD lost the path: {text}")),
        (6, _) => cause("cease", format!("{} ended it: {text}", ending_side(received, &remote))),
        (4, _) => {
            let who = if received {
                format!("{remote} received nothing from us")
            } else {
                format!("no message came from {remote}")
            };
            cause("hold-timer", format!("{who} for the whole hold time: {text}"))
                .with(format!("ping {}", p.address))
        }
        (8, _) => cause("send-hold-timer", format!("nothing could be sent for too long (RFC 9687): {text}")),
        _ => cause("message-error", format!("{who} with error {code}/{sub}: {text}")),
    }
}

fn ending_side(received: bool, remote: &str) -> String {
    if received { remote.to_owned() } else { "this host".to_owned() }
}
