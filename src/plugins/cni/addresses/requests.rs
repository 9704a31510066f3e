//! Computes the addresses that a call requests from IPAM. It does no I/O.
//!
//! One rule applies to each family: a requested address replaces one that IPAM would choose. Requested
//! addresses come, in order of precedence, from `runtimeConfig.ips`, `args.cni.ips` and `IP` of `CNI_ARGS`.
//! With `ipRanges` each outer element gives exactly one address, and a requested address must be in one of
//! them.

use std::net::IpAddr;

use serde_json::Value;
use tortie_config::key::IpFamily;
use tortie_net::Cidr;

use crate::plugins::cni::config::Config;
use crate::plugins::cni::config::args::EnvArgs;
use crate::plugins::cni::config::runtime::IpRange;
use crate::plugins::cni::protocol::error::{CniError, code};
use crate::plugins::pools::PoolNames;
use tortie_engine::ipam::{AddressRange, AddressRequest};

/// Request for one address.
#[derive(Debug, Clone, PartialEq)]
pub struct CniAddressRequest {
    /// Request to IPAM.
    pub want: AddressRequest,
    /// Ranges that contain the address, with their gateways.
    pub ranges: Vec<IpRange>,
}

/// Returns the address requests of a call. `names` are those of the store's pools.
///
/// # Errors
/// Code 7 if no address is requested, a requested address is outside of the given ranges, or a named pool does
/// not exist.
pub fn address_requests(
    config: &Config,
    env: &EnvArgs,
    names: &PoolNames,
) -> Result<Vec<CniAddressRequest>, CniError> {
    let (at, mut asked) = asked(config, env);
    let mut seen = Vec::new();
    asked.retain(|ip| {
        let new = !seen.contains(ip);
        seen.push(*ip);
        new
    });
    let outside = |ip: IpAddr, of: &str| {
        let expected = format!("write an address of {of}");
        CniError::value(at, &Value::from(ip.to_string()), &expected)
    };
    let (sets_at, sets) = if config.runtime.ranges.is_empty() {
        ("ipam.ranges", &config.ipam.ranges)
    } else {
        ("runtimeConfig.ipRanges", &config.runtime.ranges)
    };
    if !sets.is_empty() {
        let address_requests = sets.iter().map(|set| {
            let wanted = asked.iter().position(|ip| set.iter().any(|range| lies_in(*ip, &range.range)));
            let want = match wanted {
                Some(place) => AddressRequest::Exact(asked.remove(place)),
                None => AddressRequest::OneOf(set.iter().map(|range| range.range.clone()).collect()),
            };
            CniAddressRequest { want, ranges: set.clone() }
        });
        let address_requests = address_requests.collect();
        return asked.first().map_or(Ok(address_requests), |ip| Err(outside(*ip, sets_at)));
    }
    let subnet = config.ipam.subnet;
    if let (Some(subnet), Some(ip)) = (
        subnet,
        asked.iter().find(|ip| subnet.is_some_and(|net| net.is_v4() == ip.is_ipv4() && !net.contains(**ip))),
    ) {
        return Err(outside(*ip, &format!("ipam.subnet {subnet}")));
    }
    let mut address_requests: Vec<CniAddressRequest> = asked
        .iter()
        .map(|ip| CniAddressRequest { want: AddressRequest::Exact(*ip), ranges: Vec::new() })
        .collect();
    let families = [
        (IpFamily::V4, config.ipam.ipv4, &config.ipam.ipv4_pools),
        (IpFamily::V6, config.ipam.ipv6, &config.ipam.ipv6_pools),
    ];
    for (family, wanted, pools) in families {
        let v4 = family == IpFamily::V4;
        let subnet = subnet.filter(|subnet| subnet.is_v4() == v4);
        let has = asked.iter().any(|ip| ip.is_ipv4() == v4);
        if has || !(wanted || subnet.is_some()) {
            continue;
        }
        let want = match subnet {
            Some(subnet) => AddressRequest::OneOf(vec![whole(subnet, &config.ipam.frame.gateways)]),
            None => {
                let pools = pools.iter().map(|pool| pool.prefix(names)).collect::<Result<_, _>>()?;
                AddressRequest::Any { family, count: 1, pools }
            }
        };
        address_requests.push(CniAddressRequest { want, ranges: Vec::new() });
    }
    if address_requests.is_empty() {
        let msg = "no address is requested: `ipam.assign_ipv4` and `ipam.assign_ipv6` are both false";
        return Err(CniError::new(code::CONFIG, msg));
    }
    Ok(address_requests)
}

/// Returns the requested addresses, and the field that they come from.
fn asked(config: &Config, env: &EnvArgs) -> (&'static str, Vec<IpAddr>) {
    if !config.runtime.ips.is_empty() {
        ("runtimeConfig.ips", config.runtime.ips.clone())
    } else if !config.args.ips.is_empty() {
        ("args.cni.ips", config.args.ips.clone())
    } else {
        ("CNI_ARGS IP", env.ip.into_iter().collect())
    }
}

fn whole(subnet: Cidr, gateways: &[IpAddr]) -> AddressRange {
    let except = gateways.iter().filter(|ip| subnet.contains(**ip)).copied().collect();
    AddressRange { subnet, first: None, last: None, except }
}

fn lies_in(ip: IpAddr, range: &AddressRange) -> bool {
    range.subnet.contains(ip)
        && range.first.is_none_or(|first| first <= ip)
        && range.last.is_none_or(|last| ip <= last)
        && !range.except.contains(&ip)
}
