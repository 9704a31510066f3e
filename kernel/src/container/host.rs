//! The host side of a workload's interface: creation, configuration, routes, adoption and removal.

use std::net::IpAddr;
use std::path::Path;

use tortie_config::resource::InterfaceName;
use tortie_net::Cidr;

use super::link::{Change, Device, Net, link_local, metric};
use super::{ContainerNetError, HostSide, HostSpec, MIN_MTU_V6, VethSpec};
use crate::{endpoints, sysctl};

const HERE: &str = "on this host";
/// Prefix of interface aliases that Tortie writes; the rest identifies the owner.
const OURS: &str = "tortie ";

/// Creates a veth pair, both sides down.
///
/// # Errors
/// [`ContainerNetError::Exists`] if one of the names exists; [`ContainerNetError::Taken`] if the interface
/// belongs to another owner; other errors of the kernel.
pub fn create_veth(spec: &VethSpec<'_>) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let Err(refusal) = net.add_veth(spec)? else {
        // The kernel does not accept an alias in the request that creates an interface.
        let named = existing(&mut net, spec.host.as_str()).and_then(|device| {
            let change = Change { alias: Some(spec.alias), ..Change::default() };
            net.change(device.index, &format!("interface {} cannot be marked", spec.host), &change)
        });
        return named.inspect_err(|_| _ = net.remove(spec.host.as_str()));
    };
    match refusal.code {
        libc::EEXIST => {
            let found = net.device(spec.host.as_str())?;
            taken(found.as_ref(), spec.alias)?;
            let here = found.is_some();
            let (name, place) = match (here, spec.namespace) {
                (true, _) => (spec.host, HERE),
                (false, None) => (spec.peer, HERE),
                (false, Some(_)) => (spec.peer, "in the container"),
            };
            Err(ContainerNetError::Exists { name: name.to_string(), place })
        }
        libc::EOPNOTSUPP => Err(ContainerNetError::Module { what: "pairs of interfaces", module: "veth" }),
        _ => {
            let doing = format!("the pair {} and {} cannot be made", spec.host, spec.peer);
            Err(ContainerNetError::refused(doing, &refusal))
        }
    }
}

/// Returns an error if the alias of an interface names another owner.
pub(super) fn taken(found: Option<&Device>, alias: &str) -> Result<(), ContainerNetError> {
    match found {
        Some(device)
            if [&device.alias, alias].iter().all(|text| text.starts_with(OURS)) && device.alias != alias =>
        {
            let (name, holder, wanted) = (device.name.clone(), device.alias.clone(), alias.to_owned());
            Err(ContainerNetError::Taken { name, holder, wanted })
        }
        _ => Ok(()),
    }
}

/// Configures the host side: the sysctls of workload interfaces, before it carries traffic; its IPv6
/// link-local address, usable at once; and sets it up.
///
/// # Errors
/// The interface does not exist; its MTU is too small for IPv6; the kernel refuses a request.
pub fn host_side(spec: &HostSpec<'_>) -> Result<HostSide, ContainerNetError> {
    let mut net = Net::open()?;
    let name = spec.name.as_str();
    let device = existing(&mut net, name)?;
    let mtu = spec.mtu.unwrap_or(device.mtu);
    let ipv6 = spec.addrs.iter().any(IpAddr::is_ipv6);
    if ipv6 && mtu < MIN_MTU_V6 {
        return Err(ContainerNetError::SmallMtu(mtu));
    }
    let invalid = ContainerNetError::Invalid;
    if ipv6 {
        sysctl::set(&conf6(name, "disable_ipv6"), "0").map_err(invalid)?;
    }
    endpoints::ready_interface(name, ipv6).map_err(invalid)?;
    let doing = format!("interface {name} cannot be set up");
    let mac = device.mac.unwrap_or(super::HOST_MAC);
    let change = Change { mtu: spec.mtu.filter(|mtu| *mtu != device.mtu), ..Change::default() };
    if change.mtu.is_some() {
        net.change(device.index, &doing, &change)?;
    }
    let router = ipv6.then(|| link_local(mac));
    if let Some(router) = router {
        if device.up {
            // The kernel has already created the address, in the tentative state, and does not answer for it
            // for a second.
            net.remove_address(device.index, router.into(), 64)?;
        }
        // Added before the interface is up: otherwise the kernel creates the address itself, which is
        // unusable for a second.
        net.add_address(device.index, router.into(), 64)?;
    }
    net.change(device.index, &doing, &Change { up: Some(true), ..Change::default() })?;
    if let Some(router) = router {
        net.until_answering(device.index, router.into())?;
    }
    Ok(HostSide { index: device.index, mac, mtu, link_local: router })
}

/// Adds another link-local address to the host side, for a container that uses a different gateway per
/// interface.
///
/// # Errors
/// The interface does not exist; the kernel refuses a request.
pub fn add_router(name: &InterfaceName, router: std::net::Ipv6Addr) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let device = existing(&mut net, name.as_str())?;
    net.add_address(device.index, router.into(), 64)?;
    net.until_answering(device.index, router.into())
}

/// Adds the route `<address> dev <interface> scope link` for each address.
///
/// # Errors
/// [`ContainerNetError::AddressInUse`] if such a route uses another interface; other errors of the kernel.
pub fn host_routes(name: &InterfaceName, addrs: &[IpAddr]) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let device = existing(&mut net, name.as_str())?;
    for addr in addrs {
        let prefix = Cidr::host(*addr);
        if net.add_onlink(&prefix, device.index)? {
            continue;
        }
        let by = net.way_to(*addr)?;
        if by == Some(device.index) {
            // A route by another plugin may have another scope (that of the reference ptp plugin has), which
            // the agent would treat as another process's route.
            net.remove_route(&prefix, metric(&prefix), device.index)?;
            net.add_onlink(&prefix, device.index)?;
        } else {
            let other = net.devices()?.into_iter().find(|other| Some(other.index) == by);
            let by = other.map_or_else(|| "no interface (a blackhole)".to_owned(), |other| other.name);
            return Err(ContainerNetError::AddressInUse { addr: *addr, by });
        }
    }
    Ok(())
}

/// Removes an interface, with its routes, its addresses and the other side of its pair; false if it did not
/// exist.
///
/// # Errors
/// The kernel refuses the request.
pub fn remove_link(name: &InterfaceName) -> Result<bool, ContainerNetError> {
    Net::open()?.remove(name.as_str())
}

/// Returns the alias of an interface; `None` if the interface does not exist.
///
/// # Errors
/// The kernel refuses the request.
pub fn alias_of(name: &InterfaceName) -> Result<Option<String>, ContainerNetError> {
    Ok(Net::open()?.device(name.as_str())?.map(|device| device.alias))
}

/// Returns true if the interface exists and the other side of its pair is in another namespace, which is then
/// in use.
///
/// # Errors
/// The kernel refuses the request.
pub fn is_attached(name: &InterfaceName) -> Result<bool, ContainerNetError> {
    Ok(Net::open()?.device(name.as_str())?.is_some_and(|device| device.peer_elsewhere))
}

/// Lists the interfaces of this host whose alias begins with `alias`, as pairs of name and alias.
///
/// # Errors
/// The kernel refuses the request.
pub fn orphans(alias: &str) -> Result<Vec<(String, String)>, ContainerNetError> {
    let all = Net::open()?.devices()?;
    Ok(all.into_iter().filter(|d| d.alias.starts_with(alias)).map(|d| (d.name, d.alias)).collect())
}

/// An interface created by another process, with its former state.
#[derive(Debug, Clone)]
pub struct Adopted {
    name: InterfaceName,
    was: Device,
}

/// Takes over an interface that another program created: removes it from its bridge, renames it, sets its
/// alias.
///
/// # Errors
/// The interface does not exist; the name is in use; the kernel refuses a request.
pub fn take_link(
    found: &InterfaceName,
    name: &InterfaceName,
    alias: &str,
) -> Result<Adopted, ContainerNetError> {
    let mut net = Net::open()?;
    let was = existing(&mut net, found.as_str())?;
    if found != name
        && let Some(other) = net.device(name.as_str())?
    {
        taken(Some(&other), alias)?;
        return Err(ContainerNetError::Exists { name: name.to_string(), place: HERE });
    }
    let doing = format!("interface {found} cannot become {name}");
    let adopted = Adopted { name: name.clone(), was };
    let change = || -> Result<(), ContainerNetError> {
        let was = &adopted.was;
        if was.master != 0 {
            net.change(was.index, &doing, &Change { master: Some(0), ..Change::default() })?;
        }
        if found != name {
            rename(&mut net, was, name.as_str(), &doing)?;
        }
        net.change(was.index, &doing, &Change { alias: Some(alias), ..Change::default() })
    };
    let mut change = change;
    match change() {
        Ok(()) => Ok(adopted),
        Err(error) => {
            let _ = restore_link(&adopted);
            Err(error)
        }
    }
}

/// Restores the state of an interface before [`take_link`].
///
/// # Errors
/// The kernel refuses a request.
pub fn restore_link(adopted: &Adopted) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let Adopted { name, was } = adopted;
    let doing = format!("interface {name} cannot become {} again", was.name);
    let now = match net.device(name.as_str())? {
        Some(now) => now,
        None => existing(&mut net, &was.name)?,
    };
    if now.name != was.name {
        rename(&mut net, &now, &was.name, &doing)?;
    }
    let change = Change {
        up: Some(was.up),
        mtu: (now.mtu != was.mtu).then_some(was.mtu),
        master: (now.master != was.master).then_some(was.master),
        alias: Some(&was.alias),
        ..Change::default()
    };
    net.change(was.index, &doing, &change)
}

/// Restores the name of an interface that another process adopted, and clears its alias; a missing interface
/// is no error.
///
/// # Errors
/// The name is in use; the kernel refuses a request.
pub fn unmark(name: &InterfaceName, was: &str) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let Some(device) = net.device(name.as_str())? else { return Ok(()) };
    let doing = format!("interface {name} cannot become {was} again");
    rename(&mut net, &device, was, &doing)?;
    net.change(device.index, &doing, &Change { alias: Some(""), ..Change::default() })
}

/// Renames an interface, setting it down meanwhile: kernels before 6.2 rename only interfaces that are down.
pub(super) fn rename(
    net: &mut Net,
    device: &Device,
    name: &str,
    doing: &str,
) -> Result<(), ContainerNetError> {
    if device.up {
        net.change(device.index, doing, &Change { up: Some(false), ..Change::default() })?;
    }
    net.change(device.index, doing, &Change { name: Some(name), ..Change::default() })?;
    if device.up {
        net.change(device.index, doing, &Change { up: Some(true), ..Change::default() })?;
    }
    Ok(())
}

fn existing(net: &mut Net, name: &str) -> Result<Device, ContainerNetError> {
    net.device(name)?.ok_or_else(|| ContainerNetError::Missing { name: name.to_owned(), place: HERE })
}

/// Returns the path of an IPv6 sysctl of an interface.
pub(super) fn conf6(name: &str, parameter: &str) -> std::path::PathBuf {
    Path::new(sysctl::NET).join("ipv6/conf").join(name).join(parameter)
}
