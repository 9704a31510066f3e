//! The container side of an interface: its name, addresses, routes and gateways.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_config::resource::MacAddr;
use tortie_net::Cidr;

use super::host::{conf6, rename};
use super::link::{Change, Net, RTPROT_BOOT, metric};
use super::{ContainerNetError, GATEWAY, InsideSpec, Namespace, source_routing};
use crate::endpoints::put_neighbour;
use crate::sysctl;

const INSIDE: &str = "in the container";
/// First metric of an additional default route, above that of the existing one, so that the existing one
/// stays preferred.
const SECOND: u32 = 2048;

/// Changes that [`configure_container`] made to an interface, for undoing them.
#[derive(Debug)]
pub struct Stripped {
    namespace: Namespace,
    index: u32,
    old_name: String,
    up: bool,
    mac: Option<MacAddr>,
    mtu: Option<u32>,
    addrs: Vec<IpAddr>,
    routes: Vec<(Cidr, u32)>,
    gateways: Vec<IpAddr>,
}

/// Configures the interface in the namespace, sets it up, and waits until it answers for its IPv6 addresses.
/// Returns its MAC address and a record of the changes for undoing them.
///
/// 169.254.1.1 gets a permanent neighbour entry: no host has that address, and an answer by proxy ARP would
/// need an agent that is already running.
///
/// # Errors
/// The interface does not exist or another one has its name; the kernel refuses a request.
pub fn configure_container(
    namespace: &Namespace,
    spec: &InsideSpec<'_>,
) -> Result<(MacAddr, Stripped), ContainerNetError> {
    let keep = namespace.duplicate()?;
    namespace.run(move || {
        let mut net = Net::open()?;
        let mut stripped = Stripped {
            namespace: keep,
            index: 0,
            old_name: spec.existing.to_string(),
            up: false,
            mac: None,
            mtu: None,
            addrs: Vec::new(),
            routes: Vec::new(),
            gateways: Vec::new(),
        };
        match configure(&mut net, spec, &mut stripped) {
            Ok(mac) => Ok((mac, stripped)),
            Err(error) => {
                let _ = stripped.undo_here(&mut net);
                Err(error)
            }
        }
    })?
}

fn configure(
    net: &mut Net,
    spec: &InsideSpec<'_>,
    done: &mut Stripped,
) -> Result<MacAddr, ContainerNetError> {
    let name = spec.name.as_str();
    let missing = || ContainerNetError::Missing { name: spec.existing.to_string(), place: INSIDE };
    let device = net.device(spec.existing.as_str())?.ok_or_else(missing)?;
    let doing = format!("interface {} {INSIDE} cannot be configured", spec.existing);
    (done.index, done.up) = (device.index, device.up);
    if spec.existing != spec.name {
        if net.device(name)?.is_some() {
            return Err(ContainerNetError::Exists { name: name.to_owned(), place: INSIDE });
        }
        rename(net, &device, name, &doing)?;
    }
    let ipv6 = spec.addrs.iter().any(IpAddr::is_ipv6);
    if ipv6 {
        // Some container engines disable IPv6 in each new namespace, and enable it for interfaces that use
        // it.
        sysctl::set(&conf6(name, "disable_ipv6"), "0").map_err(ContainerNetError::Invalid)?;
    }
    let mac = spec.mac.filter(|mac| device.mac != Some(*mac));
    let mtu = spec.mtu.filter(|mtu| device.mtu != *mtu);
    (done.mac, done.mtu) = (mac.and(device.mac), mtu.map(|_| device.mtu));
    net.change(device.index, &doing, &Change { up: Some(true), mac, mtu, ..Change::default() })?;
    for addr in spec.addrs {
        let len = if addr.is_ipv4() { 32 } else { 128 };
        net.add_address(device.index, *addr, len)?;
        done.addrs.push(*addr);
    }
    let has_v4 = spec.addrs.iter().any(IpAddr::is_ipv4);
    if has_v4 {
        let gateway = IpAddr::V4(GATEWAY);
        net.add_onlink(&Cidr::host(gateway), device.index)?;
        done.routes.push((Cidr::host(gateway), 0));
        net.must(&format!("the neighbour {GATEWAY} cannot be written"), |(), buf, flags, seq| {
            put_neighbour(buf, flags, seq, device.index, gateway, spec.host_mac.0, RTPROT_BOOT);
        })?;
    }
    let everywhere = [Cidr::v4(Ipv4Addr::UNSPECIFIED, 0), Cidr::v6(Ipv6Addr::UNSPECIFIED, 0)];
    for prefix in spec.routes.unwrap_or(&everywhere) {
        let gateway = match (prefix.is_v4(), spec.link_local) {
            (true, _) if has_v4 => IpAddr::V4(GATEWAY),
            (false, Some(router)) if ipv6 => router.into(),
            // The interface has no address of this family.
            _ => continue,
        };
        let mut cost = metric(prefix);
        if !net.add_via(prefix, gateway, device.index, cost)? {
            cost = SECOND.saturating_add(device.index);
            net.add_via(prefix, gateway, device.index, cost)?;
        }
        done.routes.push((*prefix, cost));
    }
    let gateways = has_v4.then_some(IpAddr::V4(GATEWAY)).into_iter();
    done.gateways = gateways.chain(spec.link_local.map(IpAddr::V6)).collect();
    source_routing::write(net, device.index, spec.addrs, &[], &done.gateways)?;
    for addr in spec.addrs.iter().filter(|addr| addr.is_ipv6()) {
        net.until_answering(device.index, *addr)?;
    }
    net.device(name)?.and_then(|device| device.mac).ok_or_else(missing)
}

impl Stripped {
    /// Undoes the changes, if the namespace still exists.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn undo(self) -> Result<(), ContainerNetError> {
        self.namespace.run(|| {
            let mut net = Net::open()?;
            self.undo_here(&mut net)
        })?
    }

    fn undo_here(&self, net: &mut Net) -> Result<(), ContainerNetError> {
        if self.index == 0 {
            return Ok(());
        }
        source_routing::remove(net, self.index, &self.gateways)?;
        for (prefix, metric) in self.routes.iter().rev() {
            net.remove_route(prefix, *metric, self.index)?;
        }
        for addr in &self.addrs {
            net.remove_address(self.index, *addr, if addr.is_ipv4() { 32 } else { 128 })?;
        }
        let doing = format!("interface {} {INSIDE} cannot be restored", self.old_name);
        let Some(now) = net.devices()?.into_iter().find(|device| device.index == self.index) else {
            return Ok(());
        };
        if now.name != self.old_name {
            rename(net, &now, &self.old_name, &doing)?;
        }
        let change = Change { up: Some(self.up), mac: self.mac, mtu: self.mtu, ..Change::default() };
        net.change(self.index, &doing, &change)
    }
}
