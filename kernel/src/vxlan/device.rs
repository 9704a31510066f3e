//! Plan of changes for a VXLAN device.
//!
//! What only its creation sets (identifier, port, parent, source, MAC address) makes a device fit or not. One
//! that fits is taken over as it is, so that no packet is lost and no other host has to learn a new MAC
//! address. One that does not fit is deleted and created again if Tortie made it or took it over, which its
//! alias shows. Any other belongs to another program and is left alone.

use std::net::{IpAddr, Ipv6Addr};

use crate::fib::network::NetworkState;
use crate::netlink::vxlan::{DeviceChange, FoundDevice, VxlanSpec};
use tortie_engine::routing::VxlanDevice;

/// Alias of Tortie's devices.
pub(crate) const ALIAS: &str = "tortie";
/// MTU of the parent if it is unknown, in octets.
const MTU: u32 = 1500;
/// Minimum MTU, in octets: IPv4 (RFC 791) and IPv6 (RFC 8200, section 5).
const MIN_MTU: [u32; 2] = [68, 1280];
/// Octets that VXLAN adds to a packet (RFC 7348), over IPv4 and over IPv6: Ethernet, VXLAN, UDP and IP.
pub const OVERHEAD: [u32; 2] = [50, 70];
const IFF_LOOPBACK: u32 = 0x8;

/// Desired configuration of a device on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedDevice {
    pub(crate) name: &'static str,
    pub(crate) spec: VxlanSpec,
    pub(crate) mtu: u32,
    addr: Option<IpAddr>,
}

impl WantedDevice {
    /// Combines the intent with the interfaces of this host.
    ///
    /// # Errors
    /// No interface has the address of this host.
    pub(crate) fn of(intent: &VxlanDevice, network: &NetworkState) -> Result<Self, String> {
        let v4 = intent.local.is_ipv4();
        let name = super::name(v4);
        let link = network.link_with(intent.local).ok_or_else(|| {
            format!("{name} waits: no interface has {}, the address of this host", intent.local)
        })?;
        // Packets leave through any interface if the host's address is one of loopback.
        let parent = if link.flags & IFF_LOOPBACK == 0 { Some(link) } else { None };
        let family = usize::from(!v4);
        let fitting =
            parent.map_or(MTU, |link| link.mtu).saturating_sub(OVERHEAD[family]).max(MIN_MTU[family]);
        Ok(Self {
            name,
            spec: VxlanSpec {
                vni: intent.vni,
                port: intent.port,
                parent: parent.map_or(0, |link| link.index),
                local: intent.local,
                mac: intent.mac,
            },
            mtu: intent.mtu.unwrap_or(fitting),
            addr: intent.addr,
        })
    }
}

/// Returns the changes that a device needs, in order; empty if it is as desired.
///
/// # Errors
/// The name belongs to a device of another program.
pub(crate) fn plan(
    wanted: &WantedDevice,
    found: Option<&FoundDevice>,
    network: &NetworkState,
) -> Result<Vec<DeviceChange>, String> {
    let WantedDevice { name, spec, mtu, addr } = wanted;
    let create = || DeviceChange::Create { name, spec: spec.clone(), mtu: *mtu };
    let Some(found) = found else { return Ok(vec![create()]) };
    let ifindex = found.ifindex;
    if found.spec.as_ref() != Some(spec) {
        return if found.alias == ALIAS {
            Ok(vec![DeviceChange::Delete { ifindex }, create()])
        } else {
            Err(format!(
                "{name} belongs to another program ({}): end that, then `ip link delete {name}`",
                difference(spec, found)
            ))
        };
    }
    let mut changes = Vec::new();
    if found.alias != ALIAS {
        changes.push(DeviceChange::SetAlias { ifindex, alias: ALIAS });
    }
    if !found.is_up || found.mtu != *mtu {
        changes.push(DeviceChange::SetUp { ifindex, mtu: (found.mtu != *mtu).then_some(*mtu) });
    }
    let held: Vec<_> = network.addresses().filter(|held| held.ifindex == ifindex).collect();
    let is_single = |len: u8, addr: IpAddr| len == if addr.is_ipv4() { 32 } else { 128 };
    // The desired address is added first, so that packets of established flows keep their source.
    if let Some(addr) = *addr
        && !held.iter().any(|held| held.addr == addr && is_single(held.len, addr))
    {
        changes.push(DeviceChange::AddAddress { ifindex, addr });
    }
    for held in held {
        let is_link_local = matches!(held.addr, IpAddr::V6(addr) if is_link_local(addr));
        if !is_link_local && (Some(held.addr) != *addr || !is_single(held.len, held.addr)) {
            changes.push(DeviceChange::DeleteAddress { ifindex, addr: held.addr, len: held.len });
        }
    }
    Ok(changes)
}

fn is_link_local(addr: Ipv6Addr) -> bool {
    addr.is_unicast_link_local()
}

/// Returns the change that removes Tortie's device; `None` if it is not there, or another program's.
pub(crate) fn removal(found: Option<&FoundDevice>) -> Option<DeviceChange> {
    let found = found.filter(|found| found.alias == ALIAS)?;
    Some(DeviceChange::Delete { ifindex: found.ifindex })
}

/// Describes why a device does not fit.
fn difference(wanted: &VxlanSpec, found: &FoundDevice) -> String {
    let Some(spec) = &found.spec else {
        return "it is no VXLAN device with a local address and without learning".to_owned();
    };
    let mac = |mac: [u8; 6]| tortie_config::resource::MacAddr(mac).to_string();
    let mut texts = Vec::new();
    let mut compare = |what: &str, found: String, wanted: String| {
        if found != wanted {
            texts.push(format!("{what} {found} instead of {wanted}"));
        }
    };
    compare("VNI", spec.vni.to_string(), wanted.vni.to_string());
    compare("port", spec.port.to_string(), wanted.port.to_string());
    compare("local address", spec.local.to_string(), wanted.local.to_string());
    compare("MAC address", mac(spec.mac), mac(wanted.mac));
    compare("parent interface", spec.parent.to_string(), wanted.parent.to_string());
    texts.join(", ")
}

/// Describes the difference that a change repairs.
pub(crate) fn describe(name: &str, change: &DeviceChange) -> String {
    match change {
        DeviceChange::Create { .. } => format!("{name} is missing"),
        DeviceChange::Delete { .. } => format!("{name} has another identifier, port, parent or source"),
        DeviceChange::SetAlias { .. } => format!("{name} is not marked as Tortie's"),
        DeviceChange::SetUp { mtu: Some(mtu), .. } => format!("{name} is not up with an MTU of {mtu}"),
        DeviceChange::SetUp { mtu: None, .. } => format!("{name} is not up"),
        DeviceChange::AddAddress { addr, .. } => format!("{name} does not have the address {addr}"),
        DeviceChange::DeleteAddress { addr, len, .. } => format!("{name} has the address {addr}/{len}, too"),
    }
}

/// Explains why a change of the device failed.
pub(crate) fn explain(name: &str, change: &DeviceChange, code: i32, text: &str) -> String {
    match change {
        DeviceChange::Create { .. } if code == libc::EOPNOTSUPP => {
            format!(
                "{name} cannot be created, since this kernel has no vxlan (CONFIG_VXLAN): load the module, or use pools \
                 without VXLAN"
            )
        }
        DeviceChange::Create { spec, .. } if code == libc::EEXIST => format!(
            "{name} cannot be created, since another device has VNI {} and port {}: find it with `ip -d link show type \
             vxlan`",
            spec.vni, spec.port
        ),
        DeviceChange::SetUp { mtu: Some(mtu), .. } if code == libc::EINVAL => {
            format!("{name} does not take an MTU of {mtu}: its parent interface carries no more")
        }
        _ => format!("{} and cannot be repaired: {text}", describe(name, change)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::link::{Address, Link};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn network(local: &str, mtu: u32, flags: u32) -> NetworkState {
        let mut network = NetworkState::default();
        network.set_link(Link { index: 2, name: "eth0".into(), flags, mtu, is_bridge: false });
        network.add_address(Address { ifindex: 2, addr: ip(local), len: 24 });
        network
    }

    fn intent(local: &str, mtu: Option<u32>) -> VxlanDevice {
        let addr = Some(if local.contains(':') { ip("fd00::1") } else { ip("10.0.0.1") });
        VxlanDevice { vni: 4096, port: 4789, local: ip(local), mac: [0x66, 0, 0, 0, 0, 1], addr, mtu }
    }

    fn found(wanted: &WantedDevice) -> FoundDevice {
        let spec = Some(wanted.spec.clone());
        FoundDevice { ifindex: 7, is_up: true, mtu: wanted.mtu, alias: ALIAS.into(), spec }
    }

    #[test]
    fn the_mtu_is_what_the_parent_carries_unless_it_is_given() {
        for (local, parent, given, mtu) in [
            ("192.0.2.1", 1500, None, 1450),
            ("192.0.2.1", 9000, None, 8950),
            ("192.0.2.1", 9000, Some(1400), 1400),
            ("2001:db8::1", 1500, None, 1430),
            ("2001:db8::1", 1280, None, 1280),
        ] {
            let wanted = WantedDevice::of(&intent(local, given), &network(local, parent, 1)).unwrap();
            assert_eq!((wanted.mtu, wanted.spec.parent), (mtu, 2), "{local} {parent} {given:?}");
        }
        let loopback = network("192.0.2.1", 65_536, 1 | IFF_LOOPBACK);
        let wanted = WantedDevice::of(&intent("192.0.2.1", None), &loopback).unwrap();
        assert_eq!((wanted.mtu, wanted.spec.parent), (1450, 0));
        let nowhere = WantedDevice::of(&intent("192.0.2.1", None), &NetworkState::default()).unwrap_err();
        assert!(nowhere.contains("no interface has 192.0.2.1"), "{nowhere}");
    }

    #[test]
    fn a_device_is_created_configured_and_then_left_alone() {
        let mut network = network("192.0.2.1", 1500, 1);
        let wanted = WantedDevice::of(&intent("192.0.2.1", None), &network).unwrap();
        let create = DeviceChange::Create { name: "vxlan.calico", spec: wanted.spec.clone(), mtu: 1450 };
        assert_eq!(plan(&wanted, None, &network), Ok(vec![create]));
        let fresh = FoundDevice { is_up: false, mtu: 1400, alias: String::new(), ..found(&wanted) };
        let (ifindex, addr) = (7, ip("10.0.0.1"));
        assert_eq!(
            plan(&wanted, Some(&fresh), &network),
            Ok(vec![
                DeviceChange::SetAlias { ifindex, alias: ALIAS },
                DeviceChange::SetUp { ifindex, mtu: Some(1450) },
                DeviceChange::AddAddress { ifindex, addr },
            ])
        );
        network.add_address(Address { ifindex, addr, len: 32 });
        assert_eq!(plan(&wanted, Some(&found(&wanted)), &network), Ok(vec![]));
        network.add_address(Address { ifindex, addr: ip("10.0.0.9"), len: 24 });
        network.add_address(Address { ifindex, addr: ip("fe80::1"), len: 64 });
        let delete = DeviceChange::DeleteAddress { ifindex, addr: ip("10.0.0.9"), len: 24 };
        assert_eq!(plan(&wanted, Some(&found(&wanted)), &network), Ok(vec![delete]));
    }

    #[test]
    fn only_a_device_of_ours_is_made_again() {
        let network = network("192.0.2.1", 1500, 1);
        let wanted = WantedDevice::of(&intent("192.0.2.1", None), &network).unwrap();
        let other = VxlanSpec { vni: 1, port: 8472, ..wanted.spec.clone() };
        let ours = FoundDevice { spec: Some(other.clone()), ..found(&wanted) };
        let create = DeviceChange::Create { name: "vxlan.calico", spec: wanted.spec.clone(), mtu: 1450 };
        assert_eq!(
            plan(&wanted, Some(&ours), &network),
            Ok(vec![DeviceChange::Delete { ifindex: 7 }, create])
        );
        let theirs = FoundDevice { alias: "flannel".into(), ..ours };
        let text = plan(&wanted, Some(&theirs), &network).unwrap_err();
        assert!(text.contains("VNI 1 instead of 4096, port 8472 instead of 4789"), "{text}");
        let dummy = FoundDevice { spec: None, ..theirs.clone() };
        assert!(plan(&wanted, Some(&dummy), &network).unwrap_err().contains("no VXLAN device"));
        assert_eq!(removal(Some(&theirs)), None);
        assert_eq!(removal(Some(&found(&wanted))), Some(DeviceChange::Delete { ifindex: 7 }));
        assert_eq!(removal(None), None);
    }
}
