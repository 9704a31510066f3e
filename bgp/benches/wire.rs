//! Decoding and encoding of UPDATEs; throughput in prefixes.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

use std::hint::black_box;
use std::net::IpAddr;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tortie_bgp::Family;
use tortie_bgp::attr::{AsPath, Attributes};
use tortie_bgp::wire::{Address, Entry, Families, Frame, Negotiated, Update, UpdateTemplate};

const SESSION: Negotiated = Negotiated {
    ebgp: false,
    as4: true,
    extended: false,
    families: Families::ALL,
    ext_nexthop: false,
    add_path_receive: Families::NONE,
    add_path_send: Families::NONE,
    reject_as_sets: true,
};

fn attributes(next_hop: &str) -> Attributes {
    let mut a = Attributes::new(next_hop.parse::<IpAddr>().unwrap());
    a.as_path = AsPath::from_sequence(&[64496, 64497, 65536, 65537]);
    a.communities = (0..8).map(|n| 64496 << 16 | n).collect();
    a.local_pref = Some(100);
    a
}

fn write<A: Address>(template: &UpdateTemplate, prefixes: &[(A, u8)], out: &mut Vec<u8>) {
    template.write(out, prefixes.iter().map(|prefix| Entry { prefix: *prefix, path_id: 0 }), |_| ());
}

fn read<A: Address>(mut bytes: &[u8]) -> usize {
    let mut prefixes = 0;
    while let Some(frame) = Frame::next(bytes, false).unwrap() {
        let update = Update::decode(frame.body, &SESSION).unwrap();
        for reach in &update.reach {
            for entry in reach.nlri.of::<A>() {
                black_box(entry);
                prefixes += 1;
            }
        }
        bytes = bytes.get(frame.len..).unwrap_or_default();
    }
    prefixes
}

fn full<A: Address>(c: &mut Criterion, name: &str, next_hop: &str, prefixes: &[(A, u8)]) {
    let template = UpdateTemplate::new(&attributes(next_hop), A::FAMILY, &SESSION).unwrap();
    let mut bytes = Vec::new();
    write(&template, prefixes, &mut bytes);
    assert_eq!(read::<A>(&bytes), prefixes.len());
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(prefixes.len() as u64));
    group.bench_function("decode", |b| b.iter(|| read::<A>(black_box(&bytes))));
    group.bench_function("encode", |b| {
        b.iter(|| {
            bytes.clear();
            write(&template, black_box(prefixes), &mut bytes);
        });
    });
    group.finish();
}

/// Full messages, as a sender with few attribute sets produces.
fn packed(c: &mut Criterion) {
    let v4: Vec<(u32, u8)> = (0..100_000).map(|n| (n << 8, 24)).collect();
    full(c, "packed-ipv4", "192.0.2.1", &v4);
    let v6: Vec<(u128, u8)> = (0..100_000u128).map(|n| (0x2001 << 112 | n << 80, 48)).collect();
    full(c, "packed-ipv6", "2001:db8::1", &v6);
}

/// A recorded feed, where attributes cost more than prefixes.
fn recorded(c: &mut Criterion) {
    let bytes = include_bytes!("../tests/data/updates-2015.bin");
    let mut group = c.benchmark_group("recorded");
    group.throughput(Throughput::Elements(read::<u32>(bytes) as u64));
    group.bench_function("decode", |b| b.iter(|| read::<u32>(black_box(bytes))));
    group.finish();
}

/// A single route: cost of one withdrawal and announcement.
fn single(c: &mut Criterion) {
    let a = attributes("192.0.2.1");
    let template = UpdateTemplate::new(&a, Family::Ipv4Unicast, &SESSION).unwrap();
    let mut out = Vec::with_capacity(4096);
    write(&template, &[(0xc633_6401_u32, 32)], &mut out);
    c.bench_function("single/decode", |b| b.iter(|| read::<u32>(black_box(&out))));
    c.bench_function("single/encode", |b| {
        b.iter(|| {
            out.clear();
            let template = UpdateTemplate::new(black_box(&a), Family::Ipv4Unicast, &SESSION).unwrap();
            write(&template, &[(0xc633_6401_u32, 32)], &mut out);
        });
    });
}

criterion_group!(benches, packed, recorded, single);
criterion_main!(benches);
