//! Recorded feeds of the RIPE Routing Information Service. A small sample is part of the tests; whole MRT
//! files are read from the paths in `TORTIE_MRT` (colon-separated, `.gz` by gzip).

use std::process::Command;

use tortie_bgp::wire::{Families, Frame, MessageKind, Negotiated, Update};

use crate::laws;
use crate::message::{body, ibgp};

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    updates: usize,
    announced: usize,
    withdrawn: usize,
    malformed: usize,
    discarded: usize,
    communities: usize,
    hops: usize,
    aggregators: usize,
}

impl Counts {
    fn add(&mut self, body: &[u8], session: &Negotiated) {
        let update = Update::decode(body, session).unwrap();
        self.updates += 1;
        self.withdrawn += update.withdrawn.iter().map(|n| n.cidrs().count()).sum::<usize>();
        if let Some(problem) = update.malformed {
            eprintln!("{problem:?} {body:02x?}");
            self.malformed += 1;
        }
        self.discarded += update.discarded.len();
        for reach in &update.reach {
            self.announced += reach.nlri.cidrs().count();
            self.communities += reach.attributes.communities.len();
            self.hops += reach.attributes.as_path.hops();
            self.aggregators += usize::from(reach.attributes.aggregator().is_some());
        }
    }
}

/// Every 260th UPDATE of an iBGP feed of 2015. The expected numbers were counted by a separate program in
/// another language.
#[test]
fn sample_of_2015() {
    let mut rest: &[u8] = include_bytes!("../data/updates-2015.bin");
    let session = ibgp();
    let mut counts = Counts::default();
    while let Some(frame) = Frame::next(rest, false).unwrap() {
        assert_eq!(frame.kind, MessageKind::Update);
        counts.add(frame.body, &session);
        // Property of the fuzz target on real routes; 2 selects iBGP with four-octet AS numbers.
        laws::update(&[&[2][..], frame.body].concat());
        rest = &rest[frame.len..];
    }
    assert!(rest.is_empty());
    let expected = Counts {
        updates: 345,
        announced: 3776,
        communities: 345,
        hops: 1035,
        aggregators: 40,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
}

#[test]
fn whole_files() {
    let Some(paths) = std::env::var_os("TORTIE_MRT") else {
        eprintln!("skipped: TORTIE_MRT names no MRT files");
        return;
    };
    for path in std::env::split_paths(&paths) {
        let bytes = if path.extension().is_some_and(|e| e == "gz") {
            let out = Command::new("gzip").arg("-dc").arg(&path).output().expect("gzip runs");
            assert!(out.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
            out.stdout
        } else {
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let start = std::time::Instant::now();
        let counts = read_mrt(&bytes);
        eprintln!("{}: {counts:?} in {:?}", path.display(), start.elapsed());
        assert!(counts.updates > 0);
        // Real feeds contain invalid routes, for example AS 0 in a path.
        assert!(counts.malformed * 1000 <= counts.updates);
    }
}

/// Reads MRT (RFC 6396, RFC 6397): TABLE_DUMP_V2 IPv4, and BGP4MP messages with four-octet AS numbers; other
/// records are skipped.
fn read_mrt(mut bytes: &[u8]) -> Counts {
    let session = Negotiated { reject_as_sets: false, ..ibgp() };
    assert_eq!(session.add_path_receive, Families::NONE);
    let mut counts = Counts::default();
    while bytes.len() >= 12 {
        let number =
            |at: usize, n: usize| bytes[at..at + n].iter().fold(0usize, |a, b| a << 8 | usize::from(*b));
        let (kind, subtype, len) = (number(4, 2), number(6, 2), number(8, 4));
        let record = &bytes[12..12 + len];
        match (kind, subtype) {
            (13, 2) => rib_entries(record, &session, &mut counts),
            (16, 4) => message(record, &session, &mut counts),
            (17, 4) => message(&record[4..], &session, &mut counts),
            _ => {}
        }
        bytes = &bytes[12 + len..];
    }
    counts
}

fn rib_entries(record: &[u8], session: &Negotiated, counts: &mut Counts) {
    let prefix = &record[4..5 + usize::from(record[4].div_ceil(8))];
    let mut entries = &record[4 + prefix.len() + 2..];
    while !entries.is_empty() {
        let len = usize::from(u16::from_be_bytes([entries[6], entries[7]]));
        counts.add(&body(&[], &entries[8..8 + len], prefix), session);
        entries = &entries[8 + len..];
    }
}

fn message(record: &[u8], session: &Negotiated, counts: &mut Counts) {
    let addresses = if record[11] == 1 { 8 } else { 32 };
    let frame = Frame::next(&record[12 + addresses..], false).unwrap().unwrap();
    if frame.kind == MessageKind::Update {
        counts.add(frame.body, session);
    }
}
