//! Parses key text into a [`Key`].

use std::net::IpAddr;
use std::str::FromStr;

use super::{
    BgpItem, DockerItem, EndpointKey, FelixItem, IpFamily, Key, LegacyKey, ProfilePart, ROOT, Scope, unescape,
};
use tortie_net::Cidr;

/// Error for text that is not a key of the data model, or a malformed one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key `{key}`: {problem}")]
pub struct KeyError {
    /// Key text as given.
    pub key: String,
    /// Faulty element of the key, and the next step.
    pub problem: String,
}

/// Description of an error, without the key text.
type Problem = String;

impl Key {
    /// Parses the full text of a key, such as `/calico/v1/Ready`.
    ///
    /// # Errors
    /// If the text is not below `/calico/`, or is a known path with a malformed or missing element. Unknown
    /// paths below `/calico/` are [`Key::Unknown`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        parse(text).map_err(|problem| KeyError { key: text.to_owned(), problem })
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

fn parse(text: &str) -> Result<Key, Problem> {
    let Some(rest) = text.strip_prefix(ROOT) else {
        return Err(format!("not below `{ROOT}`: write the full key"));
    };
    let parts: Vec<&str> = rest.split('/').collect();
    let known = match parts.as_slice() {
        ["v1", "Ready"] => Some(Key::Ready),
        ["v1", "config", rest @ ..] => setting(rest)?,
        ["v1", "host", rest @ ..] => host(rest)?,
        ["v1", "policy", rest @ ..] => policy(rest)?,
        ["v1", "ipam", family @ ("v4" | "v6"), "pool", rest @ ..] => pool(family, rest)?,
        ["ipam", "v2", rest @ ..] => ipam(rest)?,
        ["bgp", "v1", "global", rest @ ..] => bgp(Scope::Global, rest)?,
        ["bgp", "v1", "host", host, rest @ ..] if !rest.is_empty() => {
            bgp(Scope::Host(name("host", host)?), rest)?
        }
        ["felix", "v1", "host", rest @ ..] => felix(None, rest)?,
        ["felix", "v2", region, "host", rest @ ..] => felix(Some(name("region", region)?), rest)?,
        ["tortie", "v1", "schema"] => Some(Key::Schema),
        ["tortie", "v1", "status", host] => Some(Key::TortieStatus { host: name("host", host)? }),
        ["tortie", "v1", "tier", tier] => Some(Key::Tier { tier: name("tier", tier)? }),
        ["tortie", "v1", "globalnetworkset", set] => {
            Some(Key::NetworkSet { namespace: None, name: name("network set", set)? })
        }
        ["tortie", "v1", "networkset", namespace, set] => Some(Key::NetworkSet {
            namespace: Some(name("namespace", namespace)?),
            name: name("network set", set)?,
        }),
        ["tortie", "v1", "bgpfilter", filter] => Some(Key::BgpFilter(name("filter", filter)?)),
        ["tortie", "v1", "ipreservation", set] => Some(Key::IpReservation(name("reservation", set)?)),
        ["tortie", "v1", "bgpconfiguration"] => Some(Key::BgpConfiguration),
        ["tortie", "v1", "livemigration", namespace, migration] => Some(Key::LiveMigration {
            namespace: name("namespace", namespace)?,
            name: name("live migration", migration)?,
        }),
        ["tortie", "v1", "host", host, "docker", rest @ ..] => docker(host, rest)?,
        _ => None,
    };
    Ok(known.unwrap_or_else(|| Key::Unknown(text.to_owned())))
}

fn setting(rest: &[&str]) -> Result<Option<Key>, Problem> {
    Ok(Some(match rest {
        ["bgp_node_mesh"] => legacy(Key::bgp_global(BgpItem::NodeMesh)),
        [peers @ ("bgp_peer_v4" | "bgp_peer_v6"), addr] => {
            legacy(Key::bgp_global(BgpItem::Peer { addr: address(peers, addr)?, port: None }))
        }
        [parameter] => Key::Setting(Scope::Global, name("parameter name", parameter)?),
        _ => return Ok(None),
    }))
}

fn host(rest: &[&str]) -> Result<Option<Key>, Problem> {
    let [host, rest @ ..] = rest else { return Ok(None) };
    let host = name("host", host)?;
    Ok(Some(match rest {
        ["config", "marker"] => Key::Marker { host },
        ["config", parameter] => Key::Setting(Scope::Host(host), name("parameter name", parameter)?),
        ["bird_ip"] => Key::BirdIp { host },
        ["metadata"] => Key::HostMetadata { host },
        ["orchestrator_refs"] => Key::OrchestratorRefs { host },
        [peers @ ("bgp_peer_v4" | "bgp_peer_v6"), addr] => {
            legacy(Key::bgp_host(&host, BgpItem::Peer { addr: address(peers, addr)?, port: None }))
        }
        ["endpoint", endpoint] => {
            Key::Endpoint(EndpointKey::Host { host, endpoint: name("endpoint", endpoint)? })
        }
        ["workload", rest @ ..] => match workload(rest)? {
            Some((orchestrator, workload, endpoint)) => {
                Key::Endpoint(EndpointKey::Workload { host, orchestrator, workload, endpoint })
            }
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

/// Parses `<orch>/<wl>/endpoint/<ep>`.
fn workload(rest: &[&str]) -> Result<Option<(String, String, String)>, Problem> {
    match rest {
        [orchestrator, workload, "endpoint", endpoint] => Ok(Some((
            name("orchestrator", orchestrator)?,
            name("workload", workload)?,
            name("endpoint", endpoint)?,
        ))),
        [_, _, "endpoint", ..] if rest.len() > 4 => Ok(None),
        _ => Err("a workload endpoint is `workload/<orchestrator>/<workload>/endpoint/<endpoint>`; \
                  write `/` inside of a name as `%2f`"
            .to_owned()),
    }
}

fn policy(rest: &[&str]) -> Result<Option<Key>, Problem> {
    Ok(Some(match rest {
        ["profile", profile, part] => {
            let part = match *part {
                "rules" => ProfilePart::Rules,
                "tags" => ProfilePart::Tags,
                "labels" => ProfilePart::Labels,
                _ => return Ok(None),
            };
            Key::Profile { name: name("profile", profile)?, part }
        }
        ["tier", tier, "metadata"] => Key::TierMetadata { tier: name("tier", tier)? },
        ["tier", tier, "policy", policy] => {
            Key::Policy { tier: name("tier", tier)?, name: name("policy", policy)? }
        }
        _ => return Ok(None),
    }))
}

fn pool(family: &str, rest: &[&str]) -> Result<Option<Key>, Problem> {
    let [cidr] = rest else { return Ok(None) };
    // Calico's Python writers did not always clear host bits, so a pool key may contain some.
    Ok(Some(Key::Pool(prefix(family, cidr)?)))
}

fn ipam(rest: &[&str]) -> Result<Option<Key>, Problem> {
    Ok(Some(match rest {
        ["config"] => Key::IpamConfig,
        ["assignment", family @ ("ipv4" | "ipv6"), "block", cidr] => Key::Block(exact_prefix(family, cidr)?),
        ["handle", id] => Key::Handle(name("handle", id)?),
        ["assignment", "handle", id] => legacy(Key::Handle(name("handle", id)?)),
        ["host", host, family @ ("ipv4" | "ipv6"), "block", cidr] => {
            Key::Affinity { host: name("host", host)?, block: exact_prefix(family, cidr)? }
        }
        _ => return Ok(None),
    }))
}

fn bgp(scope: Scope, rest: &[&str]) -> Result<Option<Key>, Problem> {
    let item = match rest {
        ["as_num"] => BgpItem::AsNum,
        ["node_mesh"] => BgpItem::NodeMesh,
        ["loglevel"] => BgpItem::LogLevel,
        ["listen_port"] => BgpItem::ListenPort,
        ["prefix_advertisements", "ip_v4"] => BgpItem::PrefixAdvertisements(IpFamily::V4),
        ["prefix_advertisements", "ip_v6"] => BgpItem::PrefixAdvertisements(IpFamily::V6),
        [peers @ ("peer_v4" | "peer_v6"), peer] => peer_item(peers, peer)?,
        ["bmp_stations"] => BgpItem::BmpStations,
        ["multipath"] => BgpItem::Multipath,
        ["peer_interface", interface] => BgpItem::InterfacePeer(name("interface", interface)?),
        ["peer_range", cidr] => BgpItem::PeerRange(range(cidr)?),
        ["custom_filters", "v4", filter] => BgpItem::CustomFilter(IpFamily::V4, name("filter", filter)?),
        ["custom_filters", "v6", filter] => BgpItem::CustomFilter(IpFamily::V6, name("filter", filter)?),
        ["filters", filter] => BgpItem::Filter(name("filter", filter)?),
        ["ip_addr_v4"] => BgpItem::Address(IpFamily::V4),
        ["ip_addr_v6"] => BgpItem::Address(IpFamily::V6),
        ["network_v4"] => BgpItem::Network(IpFamily::V4),
        ["network_v6"] => BgpItem::Network(IpFamily::V6),
        ["rr_cluster_id"] => BgpItem::RrClusterId,
        _ => return Ok(None),
    };
    Ok(item.allowed_in(&scope).then_some(Key::Bgp(scope, item)))
}

fn peer_item(peers: &str, element: &str) -> Result<BgpItem, Problem> {
    let Some((addr, port)) = element.split_once('-') else {
        return Ok(BgpItem::Peer { addr: address(peers, element)?, port: None });
    };
    let number = if port.bytes().all(|b| b.is_ascii_digit()) { port.parse::<u16>().ok() } else { None };
    let port = number
        .ok_or_else(|| format!("`{port}` is no port: write ADDRESS or ADDRESS-PORT, port 1 to 65535"))?;
    Ok(BgpItem::peer(address(peers, addr)?, port))
}

fn felix(region: Option<String>, rest: &[&str]) -> Result<Option<Key>, Problem> {
    let [host, rest @ ..] = rest else { return Ok(None) };
    let item = match rest {
        ["status"] => FelixItem::Status,
        ["last_reported_status"] => FelixItem::LastReportedStatus,
        ["endpoint", endpoint] => FelixItem::HostEndpoint { endpoint: name("endpoint", endpoint)? },
        ["workload", rest @ ..] => match workload(rest)? {
            Some((orchestrator, workload, endpoint)) => {
                FelixItem::Workload { orchestrator, workload, endpoint }
            }
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(Key::Felix { region, host: name("host", host)?, item }))
}

fn docker(host: &str, rest: &[&str]) -> Result<Option<Key>, Problem> {
    let item = match rest {
        ["driver", driver, "epoch"] => DockerItem::Epoch { driver: name("driver", driver)? },
        ["driver", driver, "pool", id] => {
            DockerItem::Pool { driver: name("driver", driver)?, id: name("pool", id)? }
        }
        ["address", space, addr] => DockerItem::Address {
            space: name("address space", space)?,
            addr: addr.parse().map_err(|_| format!("`{addr}` below `address` is no address"))?,
        },
        ["network", id] => DockerItem::Network(name("network", id)?),
        ["endpoint", id] => DockerItem::Endpoint(name("endpoint", id)?),
        [space, rest @ ..] if !rest.is_empty() && !DockerItem::RESERVED.contains(space) => {
            DockerItem::Space { name: name("address space", space)?, rest: rest.join("/") }
        }
        _ => return Ok(None),
    };
    Ok(Some(Key::Docker { host: name("host", host)?, item }))
}

fn legacy(canonical: Key) -> Key {
    match LegacyKey::of(&canonical) {
        Some(legacy) => Key::Legacy(legacy),
        None => canonical,
    }
}

fn name(what: &str, element: &str) -> Result<String, Problem> {
    if element.is_empty() {
        return Err(format!("the {what} is empty: two slashes follow each other, or one ends the key"));
    }
    Ok(unescape(element).into_owned())
}

/// Parses an address of the family that the last digit of `directory` names.
fn address(directory: &str, element: &str) -> Result<IpAddr, Problem> {
    let addr: IpAddr =
        element.parse().map_err(|_| format!("`{element}` below `{directory}` is no address"))?;
    if addr.is_ipv4() == directory.ends_with('4') {
        Ok(addr)
    } else {
        Err(format!("`{element}` is of the other family than `{directory}`"))
    }
}

fn prefix(directory: &str, element: &str) -> Result<Cidr, Problem> {
    let cidr = Cidr::from_key_text(element)
        .map_err(|_| format!("`{element}` is no prefix: write ADDRESS-LENGTH, such as 10.0.0.0-26"))?;
    if cidr.is_v4() == directory.ends_with('4') {
        Ok(cidr)
    } else {
        Err(format!("`{element}` is of the other family than `{directory}`"))
    }
}

/// Parses a prefix of either family. Host bits are rejected, because two keys could denote the same range.
fn range(element: &str) -> Result<Cidr, Problem> {
    let family = if element.contains(':') { "peer_range of IPv6" } else { "peer_range of IPv4" };
    exact_prefix(family, element)
}

/// Parses a prefix and rejects host bits: with two keys for one block its addresses could be allocated twice.
fn exact_prefix(directory: &str, element: &str) -> Result<Cidr, Problem> {
    let cidr = prefix(directory, element)?;
    let given = element.rsplit_once('-').and_then(|(addr, _)| addr.parse::<IpAddr>().ok());
    if given == Some(cidr.addr()) {
        Ok(cidr)
    } else {
        Err(format!("`{element}` has host bits: the prefix is `{}`", cidr.to_key_text()))
    }
}
