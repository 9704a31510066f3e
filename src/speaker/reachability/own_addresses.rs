//! Watches the local addresses of connections: if the address was removed from this host, the connection can
//! carry no data (RFC 4271, section 8.1.4, event 18), which TCP would notice only after its retransmissions
//! end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use tortie_net::ScopedAddr;

/// Interval of checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// An address that returns within this time costs no session, as after a link flap or when a network manager
/// rewrites it.
const GRACE: Duration = Duration::from_millis(500);

/// State of the local addresses of connections.
#[derive(Default)]
pub(crate) struct OwnAddresses {
    next: Option<Instant>,
    /// Time since which an address is missing.
    missing: BTreeMap<ScopedAddr, Instant>,
}

/// Addresses that are not on this host.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Absent {
    /// Addresses that disappeared since the last check.
    pub(crate) missing: Vec<ScopedAddr>,
    /// Addresses whose grace period is over: their connections end.
    pub(crate) lost: Vec<ScopedAddr>,
}

impl OwnAddresses {
    /// Returns the time of the next check.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Checks each of these addresses once.
    pub(crate) fn look(
        &mut self,
        own: impl Iterator<Item = ScopedAddr>,
        mut is_here: impl FnMut(ScopedAddr) -> bool,
        now: Instant,
    ) -> Absent {
        let own: BTreeSet<ScopedAddr> = own.collect();
        let mut absent = Absent::default();
        self.missing.retain(|addr, _| own.contains(addr));
        for addr in own {
            if is_here(addr) {
                self.missing.remove(&addr);
            } else if let Some(since) = self.missing.get(&addr) {
                if now >= *since + GRACE {
                    absent.lost.push(addr);
                }
            } else {
                self.missing.insert(addr, now);
                absent.missing.push(addr);
            }
        }
        let soon = self.missing.values().map(|since| *since + GRACE).filter(|at| *at > now).min();
        self.next = Some(soon.unwrap_or(now + INTERVAL));
        absent
    }
}

/// This host's addresses, read at most once per check.
#[derive(Default)]
pub(crate) struct Here {
    v6: Option<BTreeSet<ScopedAddr>>,
}

impl Here {
    /// True if an interface has the address, even if it is tentative (after its link was down). True if this
    /// cannot be determined.
    pub(crate) fn has(&mut self, addr: ScopedAddr) -> bool {
        match addr.addr() {
            IpAddr::V4(v4) => can_bind(v4),
            IpAddr::V6(_) => {
                let read = || {
                    // Read for this thread, since the network namespace belongs to a thread.
                    addresses_v6(
                        &std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default(),
                    )
                };
                let list = self.v6.get_or_insert_with(read);
                list.is_empty() || list.contains(&addr)
            }
        }
    }
}

fn can_bind(addr: Ipv4Addr) -> bool {
    let Ok(socket) = Socket::new(Domain::IPV4, Type::DGRAM.cloexec(), None) else { return true };
    let bound = socket.bind(&SockAddr::from(SocketAddr::from((addr, 0))));
    bound.err().is_none_or(|e| e.raw_os_error() != Some(libc::EADDRNOTAVAIL))
}

/// Parses the kernel's list of IPv6 addresses (`/proc/net/if_inet6`: address, index, prefix length, scope and
/// flags in hexadecimal, name), without addresses that are in use on another node.
fn addresses_v6(list: &str) -> BTreeSet<ScopedAddr> {
    const DAD_FAILED: u32 = 0x08;
    let address = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let addr = Ipv6Addr::from(u128::from_str_radix(fields.next()?, 16).ok()?);
        let interface = u32::from_str_radix(fields.next()?, 16).ok()?;
        let flags = u32::from_str_radix(fields.nth(2)?, 16).ok()?;
        (flags & DAD_FAILED == 0).then(|| ScopedAddr::new(addr.into(), interface))
    };
    list.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds, present addresses, newly missing ones, lost ones, and the time of the next check.
    type Row<'a> = (u64, &'a [ScopedAddr], &'a [ScopedAddr], &'a [ScopedAddr], u64);

    #[test]
    fn an_address_that_stays_away_is_lost_and_one_that_is_back_is_not() {
        let (a, b): (ScopedAddr, ScopedAddr) = ("192.0.2.1".parse().unwrap(), "fe80::1%3".parse().unwrap());
        let start = Instant::now();
        let mut own = OwnAddresses::default();
        let table: [Row<'_>; 7] = [
            (0, &[a, b], &[], &[], 1000),
            (1000, &[b], &[a], &[], 1500),
            (1200, &[a, b], &[], &[], 2200),
            (2200, &[a], &[b], &[], 2700),
            (2300, &[a], &[], &[], 2700),
            (2700, &[a], &[], &[b], 3700),
            (3700, &[a, b], &[], &[], 4700),
        ];
        let at = |millis| start + Duration::from_millis(millis);
        for (millis, here, missing, lost, next) in table {
            let absent = own.look([a, b, a].into_iter(), |addr| here.contains(&addr), at(millis));
            assert_eq!(absent, Absent { missing: missing.to_vec(), lost: lost.to_vec() }, "{millis}");
            assert_eq!(own.deadline(), Some(at(next)), "{millis}");
        }
    }

    #[test]
    fn this_host_has_its_loopback_address_and_no_other_hosts() {
        for (addr, here) in [("127.0.0.1", true), ("192.0.2.77", false)] {
            assert_eq!(Here::default().has(addr.parse().unwrap()), here, "{addr}");
        }
    }

    #[test]
    fn the_kernels_list_of_ipv6_addresses_is_read() {
        let list = "20010db8000000000000000000000001 02 40 00 80     eth0\n\
                    fe8000000000000050540000fe000001 0b 40 20 c0     eth1\n\
                    fe8000000000000050540000fe000002 0b 40 20 88     eth1\ngarbage\n";
        let expected = ["2001:db8::1", "fe80::5054:0:fe00:1%11"].map(|addr| addr.parse().unwrap());
        assert_eq!(
            addresses_v6(list),
            expected.into_iter().collect(),
            "also a tentative one, not one that is another's"
        );
        let mut here = Here { v6: Some(addresses_v6(list)) };
        let of = ["2001:db8::1", "fe80::5054:0:fe00:1%11", "fe80::5054:0:fe00:1%12", "2001:db8::2"];
        assert_eq!(of.map(|addr| here.has(addr.parse().unwrap())), [true, true, false, false]);
    }
}
