//! Converts the content of an MRT file to messages of one session. It does no I/O.

use std::collections::HashSet;
use std::net::IpAddr;

use tortie_bgp::Family;
use tortie_bgp::attr::Attributes;
use tortie_bgp::mrt::{Body, PeerEntry, Record};
use tortie_bgp::wire::{
    Address, Entry, Frame, MessageKind, Negotiated, Nlri, Update, UpdateTemplate, write_end_of_rib,
};
use tortie_net::Cidr;

/// Maximum number of prefixes with equal attributes that are collected before they are written.
const RUN: usize = 4096;

/// Target session, and the selection of routes to replay.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Negotiated properties of the session; sent prefixes have no path identifiers.
    pub(super) session: Negotiated,
    /// Local AS, which is prepended to paths towards another AS.
    pub(super) asn: u32,
    /// Own next hop per family; `None` skips routes of that family.
    pub(super) next_hops: [Option<IpAddr>; 2],
    /// True to keep the next hops of the file.
    pub(super) keep_next_hop: bool,
    /// Only routes of this peer; without it, a table gives the first path of each prefix, and updates give
    /// all messages.
    pub(super) only: Option<IpAddr>,
}

/// Counts of the replay so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Played {
    /// Number of records read.
    pub(super) records: u64,
    /// Number of prefixes announced.
    pub(super) announced: u64,
    /// Number of prefixes withdrawn.
    pub(super) withdrawn: u64,
    /// Number of routes that are malformed, or that this session cannot carry.
    pub(super) skipped: u64,
}

/// Converts records to messages.
#[derive(Debug)]
pub(super) struct Player {
    plan: Plan,
    peers: Vec<PeerEntry>,
    /// Routes of a table with equal attributes that are not written yet.
    run: Option<(Attributes, Vec<Cidr>)>,
    table: bool,
    /// Prefixes of TABLE_DUMP whose path was already used.
    dumped: HashSet<Cidr>,
    pub(super) played: Played,
}

impl Player {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            peers: Vec::new(),
            run: None,
            table: false,
            dumped: HashSet::new(),
            played: Played::default(),
        }
    }

    /// Appends the messages of this record; routes of a table may be appended by a later call.
    pub(super) fn record(&mut self, record: &Record<'_>, out: &mut Vec<u8>) {
        self.played.records += 1;
        match &record.body {
            Body::PeerIndex(index) => self.peers.clone_from(&index.peers),
            Body::Rib(rib) => {
                let wanted = |peer: u16| {
                    let address = self.peers.get(usize::from(peer)).map(|p| p.address);
                    self.plan.only.is_none() || self.plan.only == address
                };
                if let Some(entry) = rib.entries.iter().find(|e| wanted(e.peer)) {
                    self.route(rib.prefix, entry.attributes.decode(rib.prefix).ok(), out);
                }
            }
            // A record has one path (RFC 6396 4.2): further paths of the prefix follow, and would replace it.
            Body::TableDump(dump)
                if self.plan.only.is_none_or(|only| only == dump.peer) && self.dumped.insert(dump.prefix) =>
            {
                self.route(dump.prefix, dump.attributes.decode(dump.prefix).ok(), out);
            }
            Body::Message(message) if !message.sent && self.plan.only.is_none_or(|p| p == message.peer) => {
                self.flush(out);
                let Ok(Some(frame)) = Frame::next(message.octets, true) else {
                    self.played.skipped += 1;
                    return;
                };
                if frame.kind == MessageKind::Update {
                    match Update::decode(frame.body, &message.session()) {
                        Ok(update) => self.update(update, out),
                        Err(_) => self.played.skipped += 1,
                    }
                }
            }
            _ => {}
        }
    }

    /// Appends the remaining routes at the end of the file, and End-of-RIB after a table.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        self.flush(out);
        if std::mem::take(&mut self.table) {
            for family in self.plan.session.families.iter() {
                write_end_of_rib(family, out);
            }
        }
    }

    fn route(&mut self, prefix: Cidr, attributes: Option<Attributes>, out: &mut Vec<u8>) {
        self.table = true;
        let family = Family::of(prefix.addr());
        let Some(attributes) = attributes.and_then(|a| self.rewrite(a, family)) else {
            self.played.skipped += 1;
            return;
        };
        if let Some((same, prefixes)) = &mut self.run
            && *same == attributes
            && prefixes.len() < RUN
            && prefixes.first().is_some_and(|p| p.is_v4() == prefix.is_v4())
        {
            prefixes.push(prefix);
            return;
        }
        self.flush(out);
        self.run = Some((attributes, vec![prefix]));
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        let Some((attributes, prefixes)) = self.run.take() else { return };
        let v4 = prefixes.first().is_some_and(Cidr::is_v4);
        let family = if v4 { Family::Ipv4Unicast } else { Family::Ipv6Unicast };
        let count = prefixes.len() as u64;
        let Ok(template) = UpdateTemplate::new(&attributes, family, &self.plan.session) else {
            self.played.skipped += count;
            return;
        };
        if v4 {
            template.write(out, prefixes.iter().filter_map(v4_entry), |_| ());
        } else {
            template.write(out, prefixes.iter().filter_map(v6_entry), |_| ());
        }
        self.played.announced += count;
    }

    fn update(&mut self, update: Update<'_>, out: &mut Vec<u8>) {
        for nlri in &update.withdrawn {
            if !self.plan.session.families.contains(nlri.family()) {
                self.played.skipped += nlri.cidrs().count() as u64;
                continue;
            }
            let template = UpdateTemplate::withdrawal(nlri.family(), &self.plan.session);
            write(&template, nlri, out);
            self.played.withdrawn += nlri.cidrs().count() as u64;
        }
        for reach in update.reach {
            let count = reach.nlri.cidrs().count() as u64;
            let family = reach.nlri.family();
            let template = self
                .rewrite(reach.attributes, family)
                .and_then(|a| UpdateTemplate::new(&a, family, &self.plan.session).ok());
            match template {
                Some(template) => {
                    write(&template, &reach.nlri, out);
                    self.played.announced += count;
                }
                None => self.played.skipped += count,
            }
        }
        if let Some(family) = update.end_of_rib.filter(|f| self.plan.session.families.contains(*f)) {
            write_end_of_rib(family, out);
        }
    }

    /// Adapts attributes to this session; `None` if it cannot carry the route.
    fn rewrite(&self, mut attributes: Attributes, family: Family) -> Option<Attributes> {
        let plan = &self.plan;
        if !plan.session.families.contains(family) {
            return None;
        }
        if plan.session.ebgp && attributes.as_path.first() != Some(plan.asn) {
            attributes.as_path = attributes.as_path.prepend(plan.asn, 1);
        }
        if !plan.keep_next_hop {
            attributes.next_hop = plan.next_hops.get(family.index()).copied().flatten()?.into();
            attributes.link_local = None;
        }
        // Routes that the collector originates have no next hop.
        Some(attributes).filter(|a| !a.next_hop.addr().is_unspecified())
    }
}

fn write(template: &UpdateTemplate, nlri: &Nlri<'_>, out: &mut Vec<u8>) {
    match nlri.family() {
        Family::Ipv4Unicast => template.write(out, nlri.v4(), |_| ()),
        Family::Ipv6Unicast => template.write(out, nlri.v6(), |_| ()),
    }
}

fn v4_entry(prefix: &Cidr) -> Option<Entry<u32>> {
    match prefix.addr() {
        IpAddr::V4(a) => Some(entry(a.into(), prefix.len())),
        IpAddr::V6(_) => None,
    }
}

fn v6_entry(prefix: &Cidr) -> Option<Entry<u128>> {
    match prefix.addr() {
        IpAddr::V6(a) => Some(entry(a.into(), prefix.len())),
        IpAddr::V4(_) => None,
    }
}

fn entry<A: Address>(address: A, len: u8) -> Entry<A> {
    Entry { prefix: (address, len), path_id: 0 }
}

#[cfg(test)]
mod tests {
    use tortie_bgp::mrt::Reader;
    use tortie_bgp::wire::Families;

    use super::*;

    /// Encodes a record of TABLE_DUMP (RFC 6396 4.2): 10.0.`n`.0/24 from 192.0.2.`peer` in AS 65000 + `peer`.
    fn record(n: u8, peer: u8) -> Vec<u8> {
        let mut octets =
            vec![0, 0, 0, 1, 0, 12, 0, 1, 0, 0, 0, 40, 0, 0, 0, n, 10, 0, n, 0, 24, 1, 0, 0, 0, 1];
        octets.extend([192, 0, 2, peer, 0xfd, 0xe8 + peer, 0, 18]);
        octets.extend([0x40, 1, 1, 0, 0x40, 2, 4, 2, 1, 0xfd, 0xe8 + peer, 0x40, 3, 4, 192, 0, 2, peer]);
        octets
    }

    fn plan(only: Option<u8>) -> Plan {
        let families = Families::NONE.with(Family::Ipv4Unicast);
        Plan {
            session: Negotiated {
                families,
                ebgp: false,
                as4: true,
                extended: false,
                ext_nexthop: false,
                add_path_receive: Families::NONE,
                add_path_send: Families::NONE,
                reject_as_sets: false,
            },
            asn: 64512,
            next_hops: [Some([192, 0, 2, 99].into()), None],
            keep_next_hop: true,
            only: only.map(|peer| [192, 0, 2, peer].into()),
        }
    }

    /// Replays records and returns the announced prefixes with their next hops, in the order of the messages.
    fn played(records: &[(u8, u8)], only: Option<u8>) -> (Played, Vec<(String, String)>) {
        let file: Vec<u8> = records.iter().flat_map(|(n, peer)| record(*n, *peer)).collect();
        let plan = plan(only);
        let (mut player, mut out) = (Player::new(plan.clone()), Vec::new());
        for record in Reader::new(&file) {
            player.record(&record.unwrap(), &mut out);
        }
        player.finish(&mut out);
        let (mut rest, mut announced) = (&out[..], Vec::new());
        while let Some(frame) = Frame::next(rest, false).unwrap() {
            for reach in Update::decode(frame.body, &plan.session).unwrap().reach {
                let hop = reach.attributes.next_hop.to_string();
                announced.extend(reach.nlri.cidrs().map(|cidr| (cidr.to_string(), hop.clone())));
            }
            rest = &rest[frame.len..];
        }
        (player.played, announced)
    }

    #[test]
    fn a_table_of_the_old_format_gives_the_first_path_of_each_prefix() {
        let records = [(1, 1), (1, 2), (2, 2), (2, 1), (1, 3)];
        let of = |list: &[(&str, &str)]| {
            list.iter().map(|(prefix, hop)| ((*prefix).to_owned(), (*hop).to_owned())).collect::<Vec<_>>()
        };
        let (counted, announced) = played(&records, None);
        assert_eq!(announced, of(&[("10.0.1.0/24", "192.0.2.1"), ("10.0.2.0/24", "192.0.2.2")]));
        assert_eq!((counted.records, counted.announced, counted.skipped), (5, 2, 0));
        let (_, announced) = played(&records, Some(1));
        assert_eq!(announced, of(&[("10.0.1.0/24", "192.0.2.1"), ("10.0.2.0/24", "192.0.2.1")]));
    }
}
