//! Seeded mutations of valid messages, passed to the functions of the fuzz targets without libFuzzer. The
//! random numbers are the same in every run, so that a failure can be repeated.

use crate::laws;
use crate::message::*;

/// xorshift64* generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap()
    }

    fn octet(&mut self) -> u8 {
        const BOUNDARIES: [u8; 12] = [0, 1, 2, 3, 4, 16, 32, 33, 64, 128, 129, 255];
        if self.below(2) == 0 {
            BOUNDARIES[self.below(BOUNDARIES.len())]
        } else {
            self.next().to_le_bytes()[0]
        }
    }

    fn mutate(&mut self, data: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(data.len());
            match self.below(6) {
                0 if !data.is_empty() => data[at] = self.octet(),
                1 if !data.is_empty() => data[at] ^= 1 << self.below(8),
                2 => data.insert(at, self.octet()),
                3 if !data.is_empty() => drop(data.remove(at)),
                4 => data.truncate(at),
                _ => {
                    let from = self.below(other.len());
                    let len = self.below(other.len() - from + 1).min(64);
                    let splice = other[from..from + len].to_vec();
                    data.splice(at..at, splice);
                }
            }
        }
    }
}

fn hammer(seed: u64, rounds: usize, seeds: &[Vec<u8>], law: fn(&[u8])) {
    let mut random = Random(seed);
    for data in seeds {
        law(data);
    }
    for _ in 0..rounds {
        let mut data = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        random.mutate(&mut data, other);
        law(&data);
    }
}

/// Kept inputs of the fuzzer, one file per input.
#[test]
fn the_laws_hold_for_every_kept_input() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds");
    let names = |dir: &str| -> Vec<String> {
        let all = std::fs::read_dir(dir).unwrap();
        all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    for (target, law) in laws::TARGETS {
        let files = names(&format!("{seeds}/{target}"));
        assert!(!files.is_empty(), "{target}");
        for file in files {
            let path = format!("{seeds}/{target}/{file}");
            let data = std::fs::read(&path).unwrap();
            // The test harness shows this only if the property fails.
            println!("{path}");
            law(&data);
        }
    }
    let known: Vec<&str> = laws::TARGETS.iter().map(|(name, _)| *name).collect();
    assert!(names(seeds).iter().all(|dir| known.contains(&dir.as_str())), "inputs of no target");
}

fn updates() -> Vec<Vec<u8>> {
    let rich = [
        mandatory(),
        attr(0x80, 4, &[0, 0, 0, 1]),
        attr(0x40, 5, &[0, 0, 0, 100]),
        attr(0x40, 6, &[]),
        attr(0xc0, 7, &[0, 0, 0xfb, 0xf0, 192, 0, 2, 1]),
        attr(0xc0, 8, &[0xfb, 0xf0, 0, 1, 0xfb, 0xf0, 0, 2]),
        attr(0x80, 9, &[192, 0, 2, 1]),
        attr(0x80, 10, &[192, 0, 2, 1, 192, 0, 2, 2]),
        attr(0xc0, 16, &[0, 2, 0xfb, 0xf0, 0, 0, 0, 1]),
        attr(0xc0, 32, &[0, 0, 0xfb, 0xf0, 0, 0, 0, 1, 0, 0, 0, 2]),
        attr(0xc0, 35, &[0, 0, 0xfb, 0xf0]),
        attr(0xc0, 99, &[1, 2, 3]),
    ];
    let short = [
        origin(),
        attr(0x40, 2, &[2, 2, 0xfb, 0xf0, 0x5b, 0xa0]),
        next_hop(),
        attr(0xc0, 7, &[0x5b, 0xa0, 192, 0, 2, 1]),
        attr(0xc0, 17, &[2, 1, 0, 1, 0, 0]),
        attr(0xc0, 18, &[0, 1, 0, 0, 192, 0, 2, 1]),
    ];
    let both = [GLOBAL, LINK_LOCAL].concat();
    let bodies = [
        with(&[]),
        body(&[8, 10, 24, 172, 16, 1], &rich.concat(), &[24, 198, 51, 100, 32, 203, 0, 113, 1, 0]),
        body(&[], &short.concat(), &NLRI),
        body(&[], &[mp_reach(), rich.concat()].concat(), &[]),
        body(&[], &[attr(0x80, 14, &mp_reach_value(&both)), origin(), as_path()].concat(), &[]),
        body(&[], &attr(0x80, 15, &[0, 2, 1, 48, 0x20, 1, 0xd, 0xb8, 0, 1, 0]), &[]),
        vec![0, 0, 0, 0],
    ];
    // Each with several session parameters, selected by the first octet.
    let choices = [0x00, 0x01, 0x02, 0x03, 0x0f, 0x12, 0x23, 0x4b];
    bodies.iter().flat_map(|b| choices.iter().map(|c| [&[*c][..], b].concat())).collect()
}

fn opens() -> Vec<Vec<u8>> {
    let capabilities: [&[u8]; 9] = [
        &[1, 4, 0, 1, 0, 1],
        &[1, 4, 0, 2, 0, 1],
        &[65, 4, 0, 0, 0xfb, 0xf0],
        &[64, 6, 0x80, 120, 0, 1, 1, 0x80],
        &[69, 4, 0, 1, 1, 3],
        &[5, 6, 0, 1, 0, 1, 0, 2],
        &[71, 7, 0, 1, 1, 0x80, 0, 1, 0],
        &[73, 4, 1, b'a', 1, b'b'],
        &[9, 1, 3],
    ];
    let list = capabilities.concat();
    let n = u8::try_from(list.len()).unwrap();
    let head = [4, 0xfb, 0xf0, 0, 90, 192, 0, 2, 1];
    vec![
        [&head[..], &[0]].concat(),
        [&head[..], &[n + 2, 2, n], &list].concat(),
        [&head[..], &[255, 255, 0, n + 3, 2, 0, n], &list].concat(),
    ]
}

#[test]
fn update_bodies() {
    hammer(1, 300_000, &updates(), laws::update);
}

#[test]
fn open_bodies() {
    hammer(2, 300_000, &opens(), laws::open);
}

#[test]
fn capability_lists() {
    let lists: Vec<Vec<u8>> = opens().iter().filter(|o| o.len() > 12).map(|o| o[12..].to_vec()).collect();
    hammer(6, 200_000, &lists, laws::capability);
}

/// Events for [`laws::session`]: peers connect, send OPEN, announce, refresh and disconnect.
fn lives() -> Vec<Vec<u8>> {
    let greet = |peer: u8, how: u8| [8, peer, how];
    let announce = |peer: u8| {
        [&[0x83, peer][..], &[24, 10, 1, peer, 24, 10, 2, peer, 8, 10, 16, 172, 16, 0, 0, 0]].concat()
    };
    let calm: [&[u8]; 6] =
        [&greet(0, 0), &greet(1, 0), &announce(0), &announce(1), &[0x96, 0, 0x96, 1], &[0xf9, 255]];
    let restart: [&[u8]; 6] =
        [&greet(0, 0xc0), &announce(0), &[7, 0], &[0x59, 100], &greet(0, 0xc0), &announce(0)];
    let several: [&[u8]; 7] = [
        &greet(0, 0x20),
        &[0x83, 0, 0, 0, 0, 1, 24, 10, 1, 1, 0, 0, 0, 2, 24, 10, 1, 1],
        &greet(1, 0x20),
        &[0x1b, 4, 0x0b, 4, 0x0b, 5],
        &[0x96, 0, 0x96, 1, 0x4c, 1, 0x0c, 0],
        &[0x2f, 3, 0x0f, 2, 0x0e, 1, 0x1e, 1],
        &[0x51, 5, 0, 1, 0, 1, 0xd9, 255],
    ];
    let dialled: [&[u8]; 5] = [&[0x0a, 0], &[0x39, 255], &greet(0, 0), &[0x0d, 1], &[0x5c, 0]];
    [&calm[..], &restart, &several, &dialled]
        .iter()
        .flat_map(|l| [0x00, 0x20, 0x14, 0x43].map(|c| [&[c][..], &l.concat()].concat()))
        .collect()
}

#[test]
fn whole_sessions() {
    hammer(7, 4_000, &lives(), laws::session);
}

#[test]
fn other_bodies() {
    let notifications = vec![vec![6, 2, 3, b'a', b'b', b'c'], vec![6, 9, 6, 2, 1, b'x'], vec![3, 1], vec![]];
    hammer(3, 20_000, &notifications, laws::notification);
    hammer(4, 20_000, &[vec![0, 1, 0, 1], vec![0, 2, 2, 1]], laws::route_refresh);
}

#[test]
fn receive_buffers() {
    let mut buffers = vec![[&[2][..], &framed(4, &[]), &framed(5, &[0, 1, 0, 1])].concat()];
    buffers.extend(updates().iter().map(|u| [&[u[0]][..], &framed(2, &u[1..]), &framed(4, &[])].concat()));
    buffers.extend(opens().iter().map(|o| [&[3][..], &framed(1, o), &framed(3, &[6, 2])].concat()));
    hammer(5, 150_000, &buffers, laws::framing);
}

#[test]
fn forwarding_detection() {
    // Packets as in the seeds: 26 octets after the two that select them.
    let packet = |flags: u8, mine: u8| {
        let mut bytes = vec![6, 0, 0x20, flags, 3, 24, 0, 0, 0, mine, 0, 0, 0, 0];
        bytes.extend([0, 4, 0x93, 0xe0, 0, 4, 0x93, 0xe0, 0, 0, 0, 0, 0, 0]);
        bytes
    };
    let up = [packet(0x40, 9), packet(0x80, 9), packet(0xe0, 9)].concat();
    let then = |more: &[u8]| [&up[..], more].concat();
    let seeds = [
        up.clone(),
        then(&[2, 60, 2, 60, 2, 255]),
        then(&[packet(0xd2, 9), vec![2, 20, 0, 200, 2, 3]].concat()),
        then(&[packet(0, 9), vec![2, 70], packet(0x40, 8), vec![1, 0, 2, 70, 0, 43, 2, 70]].concat()),
        then(&[vec![0x20, 43, 0x08, 10, 0x18, 1], packet(0xc8, 9)].concat()),
    ];
    hammer(7, 100_000, &seeds, laws::bfd);
}

#[test]
fn single_attributes() {
    let seeds: Vec<Vec<u8>> = (0..16u8)
        .map(|choice| {
            [&[choice, 0, 0, 4, 0, 0, 0, 1, 1, 0, 12, 2, 2, 0, 0, 0xfb, 0xf0][..], &[0; 20]].concat()
        })
        .collect();
    let targets = [
        laws::attr_basic,
        laws::attr_as_path,
        laws::attr_aggregator,
        laws::attr_communities,
        laws::attr_reflection,
        laws::attr_mp,
        laws::attr_other,
    ];
    for (n, target) in targets.into_iter().enumerate() {
        hammer(10 + n as u64, 40_000, &seeds, target);
    }
}

#[test]
fn monitoring() {
    let files: Vec<Vec<u8>> =
        [&include_bytes!("../../fuzz/seeds/mrt/table")[..], include_bytes!("../../fuzz/seeds/mrt/updates")]
            .map(<[u8]>::to_vec)
            .into();
    hammer(30, 100_000, &files, laws::mrt);
    hammer(31, 100_000, &[include_bytes!("../../fuzz/seeds/bmp/session").to_vec()], laws::bmp);
}

#[test]
fn filter_values() {
    let seeds = [
        &include_bytes!("../../fuzz/seeds/filter/matches")[..],
        &include_bytes!("../../fuzz/seeds/filter/changes")[..],
    ];
    hammer(20, 100_000, &seeds.map(<[u8]>::to_vec), laws::filter);
}
