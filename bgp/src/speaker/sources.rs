//! What the tables know of a peer beside its routes: whether it may be sent those of others, in which cluster it is a client,
//! and which addresses are ours towards it.

use tortie_net::link_local;

use super::Speaker;
use crate::api::PeerConfig;
use crate::rib::reevaluate::Job;
use crate::session::open;
use crate::types::Family;

impl Speaker {
    pub(super) fn count_transit(&mut self, number: u32, add: bool) {
        if let Some(config) = self.peers.get(&number).map(|p| p.config.clone()) {
            self.count_transit_of(&config, add);
        }
    }

    pub(super) fn count_transit_of(&mut self, config: &PeerConfig, add: bool) {
        let ebgp = config.asn != open::local_asn(&self.global, config);
        if ebgp || config.reflector_client.is_some() {
            self.transit_peers =
                if add { self.transit_peers + 1 } else { self.transit_peers.saturating_sub(1) };
        }
        self.shared.transit = self.transit_peers > 0;
    }

    pub(super) fn set_client(&mut self, number: u32, client: Option<u32>) {
        let Some(source) = self.shared.sources.get_mut(number) else { return };
        let old = std::mem::replace(&mut source.client, client);
        if old != client {
            source.reflection = source.reflection.wrapping_add(1);
            self.change_cluster(old, client);
        }
    }

    /// A peer or a range has clients in another cluster than before, or none. A cluster that has become ours, or is ours no
    /// longer, changes what is a loop (RFC 4456 8).
    pub(super) fn change_cluster(&mut self, old: Option<u32>, new: Option<u32>) {
        if old == new {
            return;
        }
        if let Some(cluster) = old
            && let Some(count) = self.clusters.get_mut(&cluster)
        {
            *count -= 1;
            if *count == 0 {
                self.clusters.remove(&cluster);
            }
        }
        if let Some(cluster) = new {
            *self.clusters.entry(cluster).or_insert(0) += 1;
        }
        if self.shared.clusters.iter().eq(self.clusters.keys()) {
            return;
        }
        self.shared.clusters = self.clusters.keys().copied().collect();
        for family in Family::ALL {
            let mut any = false;
            // CLUSTER_LIST comes by iBGP alone.
            for (_, source) in self.shared.sources.iter_mut().filter(|(_, s)| !s.ebgp()) {
                let routes = source.family_mut(family);
                let has_routes = routes.current.received + routes.stale.received > 0;
                routes.reimport |= has_routes;
                any |= has_routes;
            }
            match family {
                Family::Ipv4Unicast if any => self.v4.request(Job::Reimport),
                Family::Ipv6Unicast if any => self.v6.request(Job::Reimport),
                _ => {}
            }
        }
    }

    /// Which addresses are ours towards an established peer; `true`: they were others before.
    pub(super) fn set_own_addresses(&mut self, number: u32) -> bool {
        let Some(peer) = self.peers.get(&number) else { return false };
        let Some(conn) = peer.session.and_then(|id| self.conns.get(&id)) else { return false };
        let local = link_local::on(conn.local.ip().to_canonical(), conn.link());
        let config = &peer.config;
        let own =
            [Some(local), config.local, config.local_v4, config.local_v6].into_iter().flatten().collect();
        let Some(source) = self.shared.sources.get_mut(number) else { return false };
        std::mem::replace(&mut source.own, own) != source.own
    }
}
