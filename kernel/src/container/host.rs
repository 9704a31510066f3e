//! The host's side of a workload's interface.

use std::net::IpAddr;
use std::path::Path;

use tortie_config::resource::InterfaceName;
use tortie_net::Cidr;

use super::link::{Change, Device, Net, link_local, metric};
use super::{ContainerNetError, HostSide, HostSpec, MIN_MTU_V6, VethSpec};
use crate::{endpoints, sysctl};

const HERE: &str = "on this host";
/// How the texts begin that say whose an interface is.
const OURS: &str = "tortie ";

/// Makes a pair, both ends down.
///
/// # Errors
/// [`ContainerNetError::Exists`] when one of the names is taken; what the kernel says.
pub fn create_veth(spec: &VethSpec<'_>) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let Err(refusal) = net.add_veth(spec)? else {
        // The kernel takes no such text while it makes an interface.
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

/// Refuses an interface that is another's by the text at it.
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

/// Sets up the host's end: the sysctls that every workload's interface has, before it carries anything; its IPv6
/// link-local address, which can be used at once; and up.
///
/// # Errors
/// When it is not there; an MTU too small for IPv6; what the kernel says.
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
            // The kernel has made it by itself already, and tries it for a second before it answers for it.
            net.remove_address(device.index, router.into(), 64)?;
        }
        // Before it is up: the kernel then makes none of its own that waits for a second to be used.
        net.add_address(device.index, router.into(), 64)?;
    }
    net.change(device.index, &doing, &Change { up: Some(true), ..Change::default() })?;
    if let Some(router) = router {
        net.until_answering(device.index, router.into())?;
    }
    Ok(HostSide { index: device.index, mac, mtu, link_local: router })
}

/// Gives the host's end one more link-local address, for a container that sends to another one by another interface.
///
/// # Errors
/// When the interface is not there; what the kernel says.
pub fn add_router(name: &InterfaceName, router: std::net::Ipv6Addr) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let device = existing(&mut net, name.as_str())?;
    net.add_address(device.index, router.into(), 64)?;
    net.until_answering(device.index, router.into())
}

/// Writes `<address> dev <interface> scope link` for each address, as `ip route` would.
///
/// # Errors
/// [`ContainerNetError::AddressInUse`] when such a route leads elsewhere; what the kernel says.
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
            // One that another plugin wrote may have another scope (the reference ptp's has), which the agent takes for
            // another process's.
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

/// Removes an interface; false: it was not there. What it has goes with it: routes, addresses, its other end.
///
/// # Errors
/// What the kernel says.
pub fn remove_link(name: &InterfaceName) -> Result<bool, ContainerNetError> {
    Net::open()?.remove(name.as_str())
}

/// The text that was written to an interface; `None`: there is no such interface.
///
/// # Errors
/// What the kernel says.
pub fn alias_of(name: &InterfaceName) -> Result<Option<String>, ContainerNetError> {
    Ok(Net::open()?.device(name.as_str())?.map(|device| device.alias))
}

/// Whether an interface is there and its other end in another namespace: something holds it.
///
/// # Errors
/// What the kernel says.
pub fn is_attached(name: &InterfaceName) -> Result<bool, ContainerNetError> {
    Ok(Net::open()?.device(name.as_str())?.is_some_and(|device| device.peer_elsewhere))
}

/// The interfaces of this host whose text begins so, with it: by name, text.
///
/// # Errors
/// What the kernel says.
pub fn orphans(alias: &str) -> Result<Vec<(String, String)>, ContainerNetError> {
    let all = Net::open()?.devices()?;
    Ok(all.into_iter().filter(|d| d.alias.starts_with(alias)).map(|d| (d.name, d.alias)).collect())
}

/// An interface that another process made, and how it was.
#[derive(Debug, Clone)]
pub struct Adopted {
    name: InterfaceName,
    was: Device,
}

/// Takes an interface that another program made: it leaves its bridge, gets the name and the text.
///
/// # Errors
/// When it is not there, or the name is taken; what the kernel says.
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

/// Makes an interface what it was before `take_link`.
///
/// # Errors
/// What the kernel says.
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

/// Gives an interface that was adopted by another process its name back; one that is not there is no error.
///
/// # Errors
/// When the name is taken; what the kernel says.
pub fn unmark(name: &InterfaceName, was: &str) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let Some(device) = net.device(name.as_str())? else { return Ok(()) };
    let doing = format!("interface {name} cannot become {was} again");
    rename(&mut net, &device, was, &doing)?;
    net.change(device.index, &doing, &Change { alias: Some(""), ..Change::default() })
}

/// Kernels before 6.2 rename only what is down.
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

/// A parameter of an interface's IPv6.
pub(super) fn conf6(name: &str, parameter: &str) -> std::path::PathBuf {
    Path::new(sysctl::NET).join("ipv6/conf").join(name).join(parameter)
}
