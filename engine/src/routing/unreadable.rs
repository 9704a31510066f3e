//! Peers whose values could never be parsed: they have no session, and the list of peers shows the reason.

use tortie_config::key::{BgpItem, Key, Scope};

use super::peers::name;
use super::types::PeerKind;
use crate::model::{InvalidKey, Model};

/// A peer, unnumbered peer or range of this host without a valid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadablePeer<'a> {
    /// Name that the session would have.
    pub name: String,
    /// Configured for this host, or for all hosts.
    pub kind: PeerKind,
    /// Address, interface, or prefix of the range.
    pub place: String,
    /// Remote port, if it is not the default BGP port.
    pub port: Option<u16>,
    /// Key, and the error in its value.
    pub problem: &'a InvalidKey,
}

/// Returns the unreadable peers of this host and of all hosts, in key order.
pub fn unreadable_peers(model: &Model) -> impl Iterator<Item = UnreadablePeer<'_>> {
    model.invalid_keys().filter(|problem| !problem.last_good).filter_map(|problem| {
        let Key::Bgp(scope, item) = problem.parsed()? else { return None };
        let kind = match scope {
            Scope::Global => PeerKind::Global,
            Scope::Host(host) if host == model.node() => PeerKind::Node,
            Scope::Host(_) => return None,
        };
        let (place, of_name, port) = match item {
            BgpItem::Peer { addr, port } => (addr.to_string(), addr.to_string(), port),
            BgpItem::InterfacePeer(interface) => (interface.clone(), interface, None),
            BgpItem::PeerRange(prefix) => {
                (prefix.to_string(), format!("range_{}", prefix.to_key_text()), None)
            }
            _ => return None,
        };
        Some(UnreadablePeer { name: name(kind, &of_name, port), kind, place, port, problem })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WatchPart;
    use tortie_store::fixtures::{put, snapshot};

    #[test]
    fn each_peer_of_this_host_whose_value_never_could_be_read_is_listed_and_no_other() {
        let at = |key: &str| format!("/calico/bgp/v1/{key}");
        let (good, bad) = (r#"{"as_num":"65001"}"#, r#"{"as_num":"#);
        // Key, value, and the listed name.
        let table = [
            ("global/peer_v4/192.0.2.1", bad, Some("Global_192_0_2_1")),
            ("global/peer_v4/192.0.2.2", good, None),
            ("global/peer_v4/192.0.2.3-1790", bad, Some("Global_192_0_2_3_port_1790")),
            ("global/peer_v6/2001:db8::1", bad, Some("Global_2001_db8__1")),
            ("global/peer_interface/eth1", bad, Some("Global_eth1")),
            ("global/peer_range/192.0.2.64-26", bad, Some("Global_range_192_0_2_64-26")),
            ("host/h1/peer_v4/192.0.2.1", bad, Some("Node_192_0_2_1")),
            ("host/h2/peer_v4/192.0.2.4", bad, None),
            ("global/filters/f", bad, None),
        ];
        for (key, value, expected) in table {
            let key = at(key);
            let mut model = Model::new("h1");
            model.replace(WatchPart::All, &snapshot(1, &[(key.as_str(), value)]));
            let listed: Vec<_> =
                unreadable_peers(&model).map(|peer| (peer.name, peer.problem.key.clone())).collect();
            assert_eq!(
                listed,
                expected.map(|name| (name.to_owned(), key.clone())).into_iter().collect::<Vec<_>>()
            );
            // A peer that had a valid value keeps it.
            let mut model = Model::new("h1");
            model.replace(WatchPart::All, &snapshot(1, &[(key.as_str(), good)]));
            model.apply(&put(2, &key, bad));
            if model.invalid_keys().all(|problem| problem.last_good) {
                assert_eq!(unreadable_peers(&model).count(), 0, "{key}");
            }
        }
    }
}
