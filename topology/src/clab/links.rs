//! Links in both forms, with the checks that containerlab's schema does not make.

use std::collections::HashMap;
use std::net::IpAddr;

use super::context::Context;
use super::raw::{RawEnd, RawFile, RawLink};
use super::topology::{End, HOST, Kind, Link, Node};
use crate::error::Invalid;

const MTU: std::ops::RangeInclusive<u32> = 68..=65535;

pub(super) fn resolve(context: &Context<'_>, raw: &RawFile, nodes: &[Node]) -> Result<Vec<Link>, Invalid> {
    let mut links = Vec::with_capacity(raw.topology.links.len());
    let mut used: HashMap<(String, String), usize> = HashMap::new();
    let mut addresses: HashMap<(String, IpAddr), String> = HashMap::new();
    for (number, raw_link) in raw.topology.links.iter().enumerate() {
        let place = format!("topology.links[{number}]");
        let link = link(context, &place, raw_link, nodes)?;
        let ends: &[End] = match &link {
            Link::Veth { ends, .. } => ends,
            Link::Dummy { end, .. } => std::slice::from_ref(end),
        };
        for end in ends {
            let name = format!("{}:{}", end.node, end.interface);
            // The ports of a bridge and the interfaces of the host are in one namespace.
            let space = nodes.iter().find(|n| n.name == end.node && n.kind == Kind::Linux);
            let space = space.map_or_else(|| HOST.to_owned(), |n| n.name.clone());
            if let Some(first) = used.insert((space.clone(), end.interface.clone()), number) {
                let text = format!("{name} is already an end of topology.links[{first}]");
                return Err(context.fault(place, &name, text, "give each link an interface of its own"));
            }
            for (address, len) in &end.addresses {
                if let Some(other) = addresses.insert((space.clone(), *address), name.clone()) {
                    let text = format!("{address}/{len} is already the address of {other}");
                    let needle = address.to_string();
                    return Err(context.fault(place, &needle, text, "give each interface its own address"));
                }
            }
        }
        if let Link::Veth { ends: [a, b], .. } = &link
            && let Some((address, _)) =
                a.addresses.iter().find(|(x, _)| b.addresses.iter().any(|(y, _)| x == y))
        {
            let text = format!("both ends have the address {address}");
            return Err(context.fault(place, &address.to_string(), text, "give each end its own"));
        }
        links.push(link);
    }
    Ok(links)
}

fn link(context: &Context<'_>, place: &str, raw: &RawLink, nodes: &[Node]) -> Result<Link, Invalid> {
    if let Some(mtu) = raw.mtu.filter(|m| !MTU.contains(m)) {
        let text = format!("mtu {mtu} is out of range");
        return Err(context.fault(format!("{place}.mtu"), "", text, "write 68 to 65535"));
    }
    let mtu = raw.mtu;
    let one_end = |wanted: &str| {
        raw.endpoint.as_ref().ok_or_else(|| {
            let text = format!("a link of type {wanted} needs `endpoint`");
            context.fault(place, "", text, "write endpoint: {node: NAME, interface: NAME}")
        })
    };
    match raw.r#type.as_deref() {
        None | Some("veth") => {
            let endpoints = raw.endpoints.as_deref().unwrap_or_default();
            let [a, b] = endpoints else {
                let text = format!("a link has two ends, this one has {}", endpoints.len());
                let needle = match endpoints {
                    [RawEnd::Brief(text), ..] => text.as_str(),
                    _ => "",
                };
                let place = format!("{place}.endpoints");
                return Err(context.fault(
                    place,
                    needle,
                    text,
                    "write endpoints: [\"NODE:INTERFACE\", \"NODE:INTERFACE\"]",
                ));
            };
            let mut ends = [end(context, place, a, nodes)?, end(context, place, b, nodes)?];
            for (key, list) in [("ipv4", &raw.ipv4), ("ipv6", &raw.ipv6)] {
                let list = list.as_deref().unwrap_or_default();
                let place = format!("{place}.{key}");
                if list.len() > 2 {
                    let text = format!("{} addresses for two ends", list.len());
                    return Err(context.fault(place, "", text, "write one an end, \"\" for none"));
                }
                for (end, text) in ends.iter_mut().zip(list).filter(|(_, t)| !t.is_empty()) {
                    end.addresses.push(address(context, &place, text, key == "ipv4")?);
                }
            }
            Ok(Link::Veth { ends, mtu })
        }
        Some("dummy") => Ok(Link::Dummy { end: end(context, place, one_end("dummy")?, nodes)?, mtu }),
        Some("host") => {
            let Some(interface) = raw.host_interface.clone() else {
                let text = "a link of type host needs `host-interface`".to_owned();
                return Err(context.fault(place, "", text, "write host-interface: NAME"));
            };
            check_interface(context, place, HOST, &interface)?;
            let inside = end(context, place, one_end("host")?, nodes)?;
            let outside = End { node: HOST.to_owned(), interface, mac: None, addresses: Vec::new() };
            Ok(Link::Veth { ends: [inside, outside], mtu })
        }
        Some(other) => {
            let text = format!("links of type {other} cannot be built from namespaces");
            let next = "use veth, dummy or host, or run this file under containerlab";
            Err(context.fault(format!("{place}.type"), other, text, next))
        }
    }
}

fn end(context: &Context<'_>, place: &str, raw: &RawEnd, nodes: &[Node]) -> Result<End, Invalid> {
    let mut end = match raw {
        RawEnd::Brief(text) => {
            let Some((node, interface)) = text.split_once(':') else {
                let fault = format!("`{text}` is no end of a link");
                return Err(context.fault(place, text, fault, "write NODE:INTERFACE"));
            };
            End { node: node.to_owned(), interface: interface.to_owned(), mac: None, addresses: Vec::new() }
        }
        RawEnd::Full(full) => {
            let mac = full.mac.as_deref().map(|text| mac(context, place, text)).transpose()?;
            let mut addresses = Vec::new();
            for (text, v4) in [(&full.ipv4, true), (&full.ipv6, false)] {
                if let Some(text) = text {
                    addresses.push(address(context, place, text, v4)?);
                }
            }
            End { node: full.node.clone(), interface: full.interface.clone(), mac, addresses }
        }
    };
    if matches!(end.node.as_str(), "mgmt-net" | "macvlan") {
        let text = format!("`{}` ends cannot be built from namespaces", end.node);
        return Err(context.fault(
            place,
            &end.node,
            text,
            "link two nodes, or run this file under containerlab",
        ));
    }
    match nodes.iter().find(|n| n.name == end.node) {
        Some(Node { kind: Kind::Host, .. }) => end.node = HOST.to_owned(),
        Some(_) => {}
        None if end.node == HOST => {}
        None => {
            let near = crate::clab::expand::nearest(&end.node, nodes.iter().map(|n| n.name.as_str()));
            let next = near.map_or_else(
                || format!("add `{}:` to topology.nodes", end.node),
                |near| format!("did you mean `{near}`?"),
            );
            let needle = format!("{}:{}", end.node, end.interface);
            return Err(context.fault(place, &needle, format!("there is no node `{}`", end.node), &next));
        }
    }
    check_interface(context, place, &end.node, &end.interface)?;
    Ok(end)
}

fn check_interface(context: &Context<'_>, place: &str, node: &str, name: &str) -> Result<(), Invalid> {
    let needle = format!("{node}:{name}");
    if name.is_empty() || name.len() > 15 || name.contains(|c: char| c == '/' || c.is_whitespace()) {
        let text = format!("`{name}` is no interface name");
        return Err(context.fault(place, &needle, text, "use 1 to 15 characters without `/` and spaces"));
    }
    if name == "lo" || (name == "eth0" && node != HOST) {
        let text = format!("{needle}: {name} belongs to the node itself");
        return Err(context.fault(
            place,
            &needle,
            text,
            "begin with eth1 (eth0 is containerlab's management interface)",
        ));
    }
    Ok(())
}

fn mac(context: &Context<'_>, place: &str, text: &str) -> Result<[u8; 6], Invalid> {
    let parts: Option<Vec<u8>> = text
        .split([':', '-'])
        .map(|p| (p.len() == 2).then(|| u8::from_str_radix(p, 16).ok()).flatten())
        .collect();
    match parts.and_then(|p| <[u8; 6]>::try_from(p).ok()) {
        Some(mac) if mac[0] & 1 == 0 => Ok(mac),
        Some(_) => {
            let fault = format!("{text} is a group address");
            Err(context.fault(place, text, fault, "make the first octet even, such as 02:00:00:00:00:01"))
        }
        None => {
            let fault = format!("`{text}` is no hardware address");
            Err(context.fault(place, text, fault, "write six octets such as 02:00:00:00:00:01"))
        }
    }
}

/// Parses an interface address with prefix length. It must be of the given family and usable by a host.
fn address(context: &Context<'_>, place: &str, text: &str, v4: bool) -> Result<(IpAddr, u8), Invalid> {
    let example = if v4 { "10.0.0.1/24" } else { "2001:db8::1/64" };
    let fault = |what: String| context.fault(place, text, what, &format!("write it as {example}"));
    let parsed =
        text.split_once('/').and_then(|(a, l)| Some((a.parse::<IpAddr>().ok()?, l.parse::<u8>().ok()?)));
    let Some((address, len)) = parsed else {
        return Err(fault(format!("`{text}` is no address with a prefix length")));
    };
    if address.is_ipv4() != v4 {
        return Err(fault(format!("{text} is not of the family that this key is for")));
    }
    let width = if v4 { 32 } else { 128 };
    if len > width {
        return Err(fault(format!("prefix length {len} is out of range: 0 to {width}")));
    }
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err(fault(format!("{address} cannot be an interface's address")));
    }
    if let IpAddr::V4(a) = address
        && len < 31
    {
        let hosts = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
        let host = u32::from(a) & hosts;
        if host == 0 || host == hosts {
            let which = if host == 0 { "network" } else { "broadcast" };
            return Err(fault(format!("{address} is the {which} address of its prefix, no host's")));
        }
    }
    Ok((address, len))
}
