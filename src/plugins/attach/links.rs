//! Names of host interfaces, and the creation and removal of a container's interface, with an undo list.

use std::net::IpAddr;

use tortie_config::key::EndpointKey;
use tortie_config::resource::{InterfaceName, MacAddr, ValueError};

use super::error::AttachError;
use super::request::{AttachRequest, DetachRequest, LinkSpec};
use tortie_kernel::container::{
    self, Adopted, ContainerNetError, GATEWAY, HOST_MAC, HostSide, HostSpec, InsideSpec, MIN_MTU_V6,
    Namespace, Stripped, VethSpec,
};

/// Maximum length of an interface's alias in the kernel.
const ALIAS_MAX: usize = 255;
/// Maximum length of an interface name.
const NAME_MAX: usize = 15;
/// Separator in an alias before the former name of an interface that another plugin created.
const OLD_NAME_PREFIX: &str = " was ";

/// Returns the name of a host interface: the prefix, then 11 characters. These are the first of an id that
/// consists of 32 or more hexadecimal digits (dashes are ignored), otherwise of a hash of the id.
///
/// # Errors
/// If the prefix leaves no room for 11 characters, or is not valid in an interface name.
pub fn host_interface(prefix: &str, id: &str) -> Result<InterfaceName, String> {
    if prefix.is_empty() || prefix.len() > 4 || !prefix.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(format!("interface prefix `{prefix}`: write 1 to 4 letters and digits, such as cali"));
    }
    let digits: String = id.chars().filter(|c| *c != '-').collect();
    let tail = if digits.len() >= 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        digits.get(..11).unwrap_or_default().to_owned()
    } else {
        format!("{:016x}", container::hash(id)).get(..11).unwrap_or_default().to_owned()
    };
    format!("{prefix}{tail}").parse().map_err(|error: ValueError| error.to_string())
}

/// Returns the alias that identifies the endpoint of an interface (`ip link` shows it).
#[must_use]
pub fn alias(key: &EndpointKey) -> String {
    let text = match key {
        EndpointKey::Workload { orchestrator, workload, endpoint, .. } => {
            format!("tortie {orchestrator}/{workload}/{endpoint}")
        }
        EndpointKey::Host { endpoint, .. } => format!("tortie {endpoint}"),
    };
    let room = ALIAS_MAX - OLD_NAME_PREFIX.len() - NAME_MAX;
    text.get(..text.floor_char_boundary(room)).unwrap_or_default().to_owned()
}

/// If an alias belongs to this endpoint, returns the former name of the interface, which it contains if
/// another plugin created the interface.
fn is_of<'a>(found: &'a str, alias: &str) -> Option<Option<&'a str>> {
    let rest = found.strip_prefix(alias)?;
    if rest.is_empty() { Some(None) } else { rest.strip_prefix(OLD_NAME_PREFIX).map(Some) }
}

/// Rejects invalid requests before anything is changed.
pub(super) fn is_valid_prefix(wanted: &AttachRequest) -> Result<(), AttachError> {
    let refuse = |text: String| Err(AttachError::Invalid(text));
    if !matches!(wanted.key, EndpointKey::Workload { .. }) {
        return refuse("a container's endpoint is a workload's".to_owned());
    }
    if wanted.addrs.is_empty() {
        return refuse(format!("{} gets no address", wanted.ifname));
    }
    if let Some(mtu) = wanted.mtu
        && !(68..=65535).contains(&mtu)
    {
        return refuse(format!("MTU {mtu}: write 68 to 65535"));
    }
    if let Some(mtu) = wanted.mtu
        && mtu < MIN_MTU_V6
        && wanted.addrs.iter().any(IpAddr::is_ipv6)
    {
        return Err(ContainerNetError::SmallMtu(mtu).into());
    }
    Ok(())
}

/// A created interface, with the steps that undo it.
#[derive(Debug)]
pub(super) struct CreatedLink {
    pub(super) host: HostSide,
    pub(super) mac: Option<MacAddr>,
    pub(super) gateways: Vec<IpAddr>,
    pub(super) notes: Vec<String>,
    steps: UndoList,
}

impl CreatedLink {
    /// Undoes all steps, the last one first.
    pub(super) fn undo(self) {
        self.steps.undo();
    }
}

/// Completed steps, the first one first.
#[derive(Debug, Default)]
struct UndoList(Vec<UndoStep>);

#[derive(Debug)]
enum UndoStep {
    Pair(InterfaceName),
    Adopted(Adopted),
    Inside(Stripped),
    Limited(InterfaceName),
    Ports(String),
}

impl UndoList {
    fn undo(self) {
        for step in self.0.into_iter().rev() {
            // Errors are ignored: the next attempt and `ipam check` find the rest, and the caller returns the
            // first error.
            let _ = match step {
                UndoStep::Pair(name) => container::remove_link(&name).map(drop),
                UndoStep::Adopted(adopted) => container::restore_link(&adopted),
                UndoStep::Inside(stripped) => stripped.undo(),
                UndoStep::Limited(name) => container::unlimit(&name),
                UndoStep::Ports(table) => container::unmap_ports(&table),
            };
        }
    }
}

/// Creates everything outside of the store; undoes it on an error.
pub(super) fn make(wanted: &AttachRequest) -> Result<CreatedLink, ContainerNetError> {
    let mut steps = UndoList::default();
    match make_with(wanted, &mut steps) {
        Ok((host, mac, gateways, notes)) => Ok(CreatedLink { host, mac, gateways, notes, steps }),
        Err(error) => {
            steps.undo();
            Err(error)
        }
    }
}

type Parts = (HostSide, Option<MacAddr>, Vec<IpAddr>, Vec<String>);

fn make_with(wanted: &AttachRequest, steps: &mut UndoList) -> Result<Parts, ContainerNetError> {
    let namespace = Namespace::open(&wanted.netns)?;
    let alias = alias(&wanted.key);
    let host = &wanted.host_ifname;
    let mut notes = Vec::new();
    let found = match &wanted.link {
        LinkSpec::Veth => {
            if container::alias_of(host)?.is_some_and(|found| is_of(&found, &alias).is_some()) {
                if container::inspect_container(&namespace, &wanted.ifname)?.is_some() {
                    return Err(ContainerNetError::Exists {
                        name: wanted.ifname.to_string(),
                        place: "in the container",
                    });
                }
                container::remove_link(host)?;
                notes.push(format!("{host} was left over from an earlier attempt and was replaced"));
            }
            container::create_veth(&VethSpec {
                host,
                host_mac: Some(HOST_MAC),
                peer: &wanted.ifname,
                peer_mac: wanted.mac,
                namespace: Some(&namespace),
                mtu: wanted.mtu,
                alias: &alias,
            })?;
            steps.0.push(UndoStep::Pair(host.clone()));
            Some(&wanted.ifname)
        }
        LinkSpec::Existing { host: now, inside } => {
            steps.0.push(UndoStep::Adopted(container::take_link(
                now,
                host,
                &format!("{alias}{OLD_NAME_PREFIX}{now}"),
            )?));
            inside.as_ref()
        }
    };
    let side = container::host_side(&HostSpec { name: host, addrs: &wanted.addrs, mtu: wanted.mtu })?;
    let mac = match found {
        None => wanted.mac,
        Some(found) => {
            let spec = InsideSpec {
                existing: found,
                name: &wanted.ifname,
                mac: wanted.mac,
                mtu: wanted.mtu,
                addrs: &wanted.addrs,
                host_mac: side.mac,
                link_local: side.link_local,
                routes: wanted.routes.as_deref(),
            };
            let (mac, stripped) = container::configure_container(&namespace, &spec)?;
            // If this function created the veth pair, removing the pair removes its content, too.
            if matches!(wanted.link, LinkSpec::Existing { .. }) {
                steps.0.push(UndoStep::Inside(stripped));
            }
            Some(mac)
        }
    };
    container::host_routes(host, &wanted.addrs)?;
    if wanted.bandwidth != container::Bandwidth::default() {
        steps.0.push(UndoStep::Limited(host.clone()));
        container::limit(host, &wanted.bandwidth, found.map(|_| (&namespace, &wanted.ifname)))?;
    }
    if !wanted.ports.is_empty() {
        steps.0.push(UndoStep::Ports(wanted.ports_table.clone()));
        container::map_ports(&wanted.ports_table, &wanted.addrs, &wanted.ports)?;
    }
    let mut gateways = Vec::new();
    if wanted.addrs.iter().any(IpAddr::is_ipv4) {
        gateways.push(IpAddr::V4(GATEWAY));
    }
    gateways.extend(side.link_local.map(IpAddr::V6));
    Ok((side, mac, gateways, notes))
}

/// Removes the interface of an endpoint, with its bandwidth limits.
pub(super) fn clear(leaving: &DetachRequest) -> Result<(), ContainerNetError> {
    let host = &leaving.host_ifname;
    let (found, alias) = (container::alias_of(host)?, alias(&leaving.key));
    // An interface name has only 44 bits of an id, so the alias decides which endpoint the interface belongs
    // to.
    let was = match found.as_deref() {
        None | Some("") => None,
        Some(found) => match is_of(found, &alias) {
            Some(was) => was,
            None => return Ok(()),
        },
    };
    let first = container::unlimit(host);
    let removed = match was {
        Some(was) => first.and(container::unmark(host, was)),
        None if leaving.own_link => first.and(container::remove_link(host).map(drop)),
        None => first,
    };
    // This runs after the interface's removal, which leaves its rules without an interface.
    removed.and(leaving.netns.as_deref().map_or(Ok(()), container::sweep_source_rules))
}
