//! BMP Loc-RIB instance peer (RFC 9069): its per-peer header, Peer Up and Peer Down.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use tortie_bgp::bmp::{Message, PeerDown, PeerHeader, PeerUp, Statistic, Statistics, Tlvs, info};
use tortie_bgp::wire::{Capabilities, Families, Negotiated, Open};
use tortie_bgp::{Family, PeerStatus, Totals};

use crate::agent::bmp::exporter::stamp;
use crate::speaker::Identity;

/// The Loc-RIB instance peer that represents this router to a BMP station.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct LocRibPeer {
    pub(in crate::agent) local: Identity,
    /// Session parameters in which both ends are this router.
    pub(in crate::agent) session: Negotiated,
    open: Vec<u8>,
}

impl LocRibPeer {
    pub(in crate::agent) fn new(local: Identity) -> Self {
        // RFC 9069, section 5.2: a fabricated OPEN with the capabilities that a station needs to decode the
        // routes.
        let open = Open {
            asn: local.asn,
            hold_time: 0,
            router_id: local.router_id,
            capabilities: Capabilities {
                multiprotocol: true,
                families: Family::ALL.into_iter().collect::<Families>(),
                as4: Some(local.asn),
                ext_nexthop: true,
                ..Capabilities::default()
            },
        };
        let mut octets = Vec::new();
        open.write(&mut octets);
        Self { local, session: Negotiated::between(&open, &open), open: octets }
    }

    pub(in crate::agent) fn header(&self, at: Instant) -> PeerHeader {
        let (seconds, micros) = stamp(at);
        PeerHeader {
            kind: PeerHeader::LOC_RIB,
            filtered: false,
            post_policy: false,
            as2: false,
            distinguisher: 0,
            address: Ipv4Addr::UNSPECIFIED.into(),
            asn: self.local.asn,
            router_id: self.local.router_id.0.into(),
            seconds,
            micros,
        }
    }

    pub(in crate::agent) fn peer_up(&self, out: &mut Vec<u8>) {
        let table = table();
        let up = PeerUp {
            local: IpAddr::from(Ipv4Addr::UNSPECIFIED),
            local_port: 0,
            remote_port: 0,
            sent: &self.open,
            received: &self.open,
            information: Tlvs::new(&table).unwrap_or_default(),
        };
        Message::PeerUp { peer: self.header(Instant::now()), up }.write(out);
    }

    pub(in crate::agent) fn peer_down(&self, out: &mut Vec<u8>) {
        let table = table();
        let reason = PeerDown::LocRib(Tlvs::new(&table).unwrap_or_default());
        Message::PeerDown { peer: self.header(Instant::now()), reason }.write(out);
    }

    /// Writes the statistics of the Loc-RIB (RFC 9069, section 5.5): selected routes, in total and by family.
    /// Local routes are always selected.
    pub(in crate::agent) fn statistics(&self, peers: &[PeerStatus], totals: &Totals, out: &mut Vec<u8>) {
        let of_peers = |family: Family| {
            let of = peers.iter().flat_map(|p| &p.families).filter(|f| f.family == family);
            of.map(|f| u64::from(f.best)).sum::<u64>()
        };
        let used =
            Family::ALL.iter().zip(totals.local).map(|(family, local)| (family, local + of_peers(*family)));
        let mut list = Vec::new();
        Statistics::push(&mut list, Statistic::Loc(used.clone().map(|(_, count)| count).sum()));
        for (family, count) in used {
            Statistics::push(&mut list, Statistic::LocFamily(family.afi(), family.safi(), count));
        }
        if let Ok(statistics) = Statistics::new(&list) {
            Message::Statistics { peer: self.header(Instant::now()), statistics }.write(out);
        }
    }
}

/// Returns the table name TLV of the only table (RFC 9069, section 5.2.1).
fn table() -> Vec<u8> {
    let mut list = Vec::new();
    Tlvs::push(&mut list, info::TABLE, b"global");
    list
}

#[cfg(test)]
mod tests {
    use tortie_bgp::RouterId;

    use super::*;

    #[test]
    fn our_own_routes_count() {
        let mut totals = Totals::default();
        totals.local = [2, 1];
        let mut octets = Vec::new();
        LocRibPeer::new(Identity { asn: 64512, router_id: RouterId(1) }).statistics(
            &[],
            &totals,
            &mut octets,
        );
        let Message::Statistics { peer, statistics } = Message::next(&octets).unwrap().unwrap().0 else {
            panic!("{octets:?}")
        };
        assert_eq!((peer.kind, peer.asn), (PeerHeader::LOC_RIB, 64512));
        let list: Vec<Statistic> = statistics.iter().collect();
        assert_eq!(list, [Statistic::Loc(3), Statistic::LocFamily(1, 1, 2), Statistic::LocFamily(2, 1, 1)]);
    }
}
