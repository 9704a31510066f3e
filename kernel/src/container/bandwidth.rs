//! Bandwidth limits of a container's interface, in both directions.
//!
//! Traffic to the container passes a token bucket (tbf) on the host side of the veth pair. Traffic from it is
//! redirected at ingress of the host side to an ifb interface, whose token bucket the container cannot reach,
//! and then continues as before. On a kernel without ifb or the redirection, the bucket is on the container's
//! own interface, where a container with CAP_NET_ADMIN could remove it.

use netlink_packet_route::link::InfoKind;
use tortie_config::resource::InterfaceName;

use super::link::{Change, Device, Net};
use super::{Bandwidth, ContainerNetError, Namespace, Rate, hash, host};
use crate::netlink::tc::{self, Bucket, Qdisc};

/// Minimum of the default burst, in octets.
const LEAST_BURST: u64 = 32 << 10;
/// Divisor of the rate: the default burst is at least 1/50 of a second.
const BURST_PART: u64 = 50;
/// Divisor of the rate: the queue holds at most 1/20 of a second, after the burst.
const QUEUE_PART: u64 = 20;
/// Length of the frame header in octets, which the MTU does not include.
const FRAME: u64 = 18;
/// Burst that container runtimes send if none is configured.
const NO_BURST: u64 = u32::MAX as u64;

/// Limits the traffic of a host interface. `inside` is the container's side, used on kernels without ifb.
///
/// # Errors
/// A rate below 8 bits per second; [`ContainerNetError::Module`] with the missing kernel module; other errors
/// of the kernel.
pub fn limit(
    host: &InterfaceName,
    bandwidth: &Bandwidth,
    inside: Option<(&Namespace, &InterfaceName)>,
) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let missing = || ContainerNetError::Missing { name: host.to_string(), place: "on this host" };
    let device = net.device(host.as_str())?.ok_or_else(missing)?;
    if let Some(rate) = bandwidth.ingress {
        fill(&mut net, &device, bucket(rate, device.mtu)?)?;
    }
    let Some(rate) = bandwidth.egress else { return Ok(()) };
    let bucket = bucket(rate, device.mtu)?;
    match (redirect(&mut net, &device, bucket), inside) {
        (Err(ContainerNetError::Module { .. }), Some((namespace, name))) => {
            drop_redirect(&mut net, &device)?;
            namespace.run(|| limit_inside(name, bucket))?
        }
        (done, _) => done,
    }
}

/// Installs the token bucket on the container's own interface.
fn limit_inside(name: &InterfaceName, bucket: Bucket) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    let missing = || ContainerNetError::Missing { name: name.to_string(), place: "in the container" };
    let device = net.device(name.as_str())?.ok_or_else(missing)?;
    fill(&mut net, &device, bucket)
}

/// Removes the limits of a host interface. Missing limits are no error.
///
/// # Errors
/// The kernel refuses a request.
pub fn unlimit(host: &InterfaceName) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    match net.device(host.as_str())? {
        None => remove_shaper(&mut net, host.as_str()),
        Some(device) => {
            let doing = format!("the limit of {host} cannot be removed");
            let present = qdiscs(&mut net, device.index)?;
            if present.iter().any(|qdisc| qdisc.kind == "tbf") {
                remove_qdisc(&mut net, &doing, device.index, true)?;
            }
            drop_redirect(&mut net, &device)
        }
    }
}

/// Returns the limits in force, in octets per second: to the container, and from it if limited by an ifb.
///
/// # Errors
/// The kernel refuses a request.
pub fn shaped(host: &InterfaceName) -> Result<(Option<u64>, Option<u64>), ContainerNetError> {
    let mut net = Net::open()?;
    let mut rate = |name: &str| -> Result<Option<u64>, ContainerNetError> {
        let Some(device) = net.device(name)? else { return Ok(None) };
        Ok(qdiscs(&mut net, device.index)?.into_iter().find_map(|qdisc| qdisc.rate))
    };
    Ok((rate(host.as_str())?, rate(&shaper(host.as_str()))?))
}

/// Returns the name of the ifb of a host interface.
fn shaper(host: &str) -> String {
    let digits = format!("{:016x}", hash(host));
    format!("tifb{}", digits.get(..11).unwrap_or_default())
}

/// Converts a rate in bits to a token bucket in octets.
fn bucket(rate: Rate, mtu: u32) -> Result<Bucket, ContainerNetError> {
    let octets = rate.bits / 8;
    if octets == 0 {
        return Err(ContainerNetError::Invalid(format!(
            "a rate of {} bits a second: write 8 or more, or leave it out",
            rate.bits
        )));
    }
    let burst = match rate.burst {
        Some(bits) if bits > 0 && bits < NO_BURST => bits / 8,
        _ => (octets / BURST_PART).max(LEAST_BURST),
    };
    // A frame longer than the depth of the bucket would never pass.
    let burst = burst.max(u64::from(mtu) + FRAME);
    let queue = burst.saturating_add(octets / QUEUE_PART);
    let narrow = |octets: u64| u32::try_from(octets).unwrap_or(u32::MAX);
    Ok(Bucket { rate: octets, burst: narrow(burst), queue: narrow(queue) })
}

fn fill(net: &mut Net, device: &Device, bucket: Bucket) -> Result<(), ContainerNetError> {
    let doing = format!("the rate of {} cannot be limited", device.name);
    let answer = net.ask(&doing, |(), buf, flags, seq| {
        tc::encode_bucket(buf, flags, seq, device.index, bucket);
    })?;
    answer.map_err(|refusal| match refusal.code {
        libc::ENOENT | libc::EOPNOTSUPP => {
            ContainerNetError::Module { what: "token buckets", module: "sch_tbf" }
        }
        _ => ContainerNetError::refused(doing, &refusal),
    })
}

/// Redirects the ingress of the interface through an ifb.
fn redirect(net: &mut Net, device: &Device, bucket: Bucket) -> Result<(), ContainerNetError> {
    let name = shaper(&device.name);
    let text = limit_of(&device.name);
    match net.add(InfoKind::Ifb, &name, device.mtu)? {
        Ok(()) => {}
        // Left over from an earlier attachment.
        Err(refusal) if refusal.code == libc::EEXIST => {}
        Err(refusal) if refusal.code == libc::EOPNOTSUPP => {
            return Err(ContainerNetError::Module {
                what: "interfaces that limit what comes in",
                module: "ifb",
            });
        }
        Err(refusal) => return Err(ContainerNetError::refused(format!("{name} cannot be made"), &refusal)),
    }
    let missing = || ContainerNetError::Missing { name: name.clone(), place: "on this host" };
    let ifb = net.device(&name)?.ok_or_else(missing)?;
    host::taken(Some(&ifb), &text)?;
    let mark = Change { alias: Some(&text), ..Change::default() };
    net.change(ifb.index, &format!("{name} cannot be marked"), &mark)?;
    fill(net, &ifb, bucket)?;
    let doing = format!("what comes in by {} cannot be limited", device.name);
    let ingress = net.ask(&doing, |(), buf, flags, seq| tc::encode_ingress(buf, flags, seq, device.index))?;
    match ingress {
        Ok(()) => {}
        Err(refusal) if refusal.code == libc::EEXIST => {}
        Err(refusal) if matches!(refusal.code, libc::ENOENT | libc::EOPNOTSUPP) => {
            return Err(ContainerNetError::Module { what: "a look at what comes in", module: "sch_ingress" });
        }
        Err(refusal) => return Err(ContainerNetError::refused(doing, &refusal)),
    }
    let filter = net.ask(&doing, |(), buf, flags, seq| {
        tc::encode_redirect(buf, flags, seq, device.index, ifb.index);
    })?;
    match filter {
        Ok(()) => Ok(()),
        Err(refusal) if matches!(refusal.code, libc::ENOENT | libc::EOPNOTSUPP) => {
            let (what, module) = ("redirection of what comes in", "cls_u32 or act_mirred");
            Err(ContainerNetError::Module { what, module })
        }
        Err(refusal) => Err(ContainerNetError::refused(doing, &refusal)),
    }
}

fn drop_redirect(net: &mut Net, device: &Device) -> Result<(), ContainerNetError> {
    let name = shaper(&device.name);
    if net.device(&name)?.is_none_or(|ifb| host::taken(Some(&ifb), &limit_of(&device.name)).is_err()) {
        return Ok(());
    }
    let doing = format!("the limit of {} cannot be removed", device.name);
    if qdiscs(net, device.index)?.iter().any(|qdisc| qdisc.kind == "ingress") {
        remove_qdisc(net, &doing, device.index, false)?;
    }
    net.remove(&name).map(drop)
}

/// Removes the qdisc at the root, or that of the ingress.
fn remove_qdisc(net: &mut Net, doing: &str, index: u32, root: bool) -> Result<(), ContainerNetError> {
    let answer = net.ask(doing, |(), buf, flags, seq| tc::encode_remove(buf, flags, seq, index, root))?;
    match answer {
        // EINVAL: it has another handle, that of the reference bandwidth plugin, which leaves it behind.
        // Otherwise it was removed meanwhile, alone or with its interface.
        Err(refusal) if !matches!(refusal.code, libc::EINVAL | libc::ENOENT | libc::ENODEV) => {
            Err(ContainerNetError::refused(doing, &refusal))
        }
        _ => Ok(()),
    }
}

/// Removes the ifb of an interface that no longer exists, unless the ifb of that name belongs to another
/// interface.
fn remove_shaper(net: &mut Net, host: &str) -> Result<(), ContainerNetError> {
    let name = shaper(host);
    match net.device(&name)? {
        Some(ifb) if host::taken(Some(&ifb), &limit_of(host)).is_ok() => net.remove(&name).map(drop),
        _ => Ok(()),
    }
}

/// Returns the alias of the ifb of a host interface.
fn limit_of(host: &str) -> String {
    format!("tortie limit of {host}")
}

/// Reads the qdiscs of an interface; none if the interface was removed.
fn qdiscs(net: &mut Net, index: u32) -> Result<Vec<Qdisc>, ContainerNetError> {
    let doing = "limits cannot be read";
    let mut all = Vec::new();
    let dump = |buf: &mut Vec<u8>, seq| tc::encode_dump(buf, seq, index);
    match net.dump(doing, dump, |message| all.extend(tc::decode(message, index)))? {
        Err(refusal) if refusal.code != libc::ENODEV => Err(ContainerNetError::refused(doing, &refusal)),
        _ => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bits: u64, burst: Option<u64>, mtu: u32) -> Bucket {
        bucket(Rate { bits, burst }, mtu).unwrap()
    }

    #[test]
    fn bits_become_octets_and_a_burst_is_never_smaller_than_a_frame() {
        assert_eq!(
            of(8_000_000, Some(800_000), 1500),
            Bucket { rate: 1_000_000, burst: 100_000, queue: 150_000 }
        );
        assert_eq!(of(8_000, Some(1_600), 1500).burst, 1518);
        assert!(bucket(Rate { bits: 7, burst: None }, 1500).is_err());
    }

    #[test]
    fn no_burst_is_what_20_ms_bring_and_so_is_what_runtimes_say_when_they_do_not_care() {
        let wanted = Bucket { rate: 12_500_000, burst: 250_000, queue: 875_000 };
        for burst in [None, Some(0), Some(u64::from(u32::MAX)), Some(u64::MAX)] {
            assert_eq!(of(100_000_000, burst, 1500), wanted);
        }
        assert_eq!(of(1_000_000, None, 1500).burst, 32 << 10);
    }

    #[test]
    fn rates_above_4_gbit_keep_all_their_digits() {
        let wide = of(100_000_000_000, Some(4_000_000_000), 1500);
        assert_eq!((wide.rate, wide.burst), (12_500_000_000, 500_000_000));
        assert_eq!(of(u64::MAX, None, 1500).queue, u32::MAX);
    }

    #[test]
    fn the_name_of_a_limit_is_an_interface_name() {
        assert_eq!(shaper("cali0123456789a").len(), 15);
        assert_ne!(shaper("cali0123456789a"), shaper("cali0123456789b"));
    }
}
