//! Two ends: handshake, intervals, detection, Poll Sequences, demand mode, and packets that may take a
//! session down.

use std::time::Duration;

use tortie_bgp::bfd::{Bfd, Cause, Diagnostic, Endpoint, Packet, Parameters, Path, Received, Refused, State};

use crate::net::{MS, Net, address, datagram, endpoint, times};

const SEC: Duration = Duration::from_secs(1);

/// Two ends with 50 ms and multiplier 3, Up and in steady state.
fn up() -> Net {
    let mut net = Net::both(times(50, 3), times(50, 3));
    net.run(SEC * 3);
    assert_eq!(net.states(), [State::Up, State::Up]);
    net
}

/// Returns the packet that the other end of `end` would send now.
fn packet(net: &Net, end: usize, state: State) -> Packet {
    let status = net.status(end);
    Packet {
        diagnostic: Diagnostic::NONE,
        state,
        poll: false,
        r#final: false,
        independent: false,
        demand: false,
        multiplier: 3,
        my_discriminator: status.remote_discriminator,
        your_discriminator: status.discriminator,
        desired_min_tx: 50_000,
        required_min_rx: 50_000,
        required_min_echo_rx: 0,
    }
}

#[test]
fn two_ends_come_up_by_the_three_way_handshake() {
    let net = up();
    for end in 0..2 {
        let steps: Vec<_> = net.changes[end].iter().map(|(_, c)| (c.from, c.to)).collect();
        let through_init = [(State::Down, State::Init), (State::Init, State::Up)];
        assert!(steps == through_init || steps == [(State::Down, State::Up)], "{steps:?}");
        assert_eq!(net.status(end).ups, 1);
    }
    assert_ne!(net.status(0).discriminator, net.status(1).discriminator);
    assert_eq!(net.status(0).remote_discriminator, net.status(1).discriminator);
}

#[test]
fn nobody_hurries_before_up() {
    // RFC 5880 6.8.3: at least 1 s, here 750 ms to 1 s with jitter.
    let mut net = Net::new();
    net.ends[0].set(endpoint(0), times(50, 3), net.now);
    let gaps = net.gaps(0, SEC * 60);
    assert!(gaps.len() >= 59 && gaps.iter().all(|g| *g >= MS * 750 && *g <= MS * 1000), "{gaps:?}");
    let spread = gaps.iter().max().unwrap().saturating_sub(*gaps.iter().min().unwrap());
    assert!(spread > MS * 150, "no jitter: {spread:?}");
    assert!(
        net.sent.iter().all(|s| s.packet.desired_min_tx == 1_000_000 && s.packet.your_discriminator == 0)
    );
}

#[test]
fn the_interval_is_the_longer_of_both_requested_with_jitter() {
    let mut net = Net::both(times(50, 3), times(200, 3));
    net.run(SEC * 3);
    for end in 0..2 {
        let gaps = net.gaps(end, SEC * 20);
        assert!(gaps.iter().all(|g| *g >= MS * 150 && *g <= MS * 200), "{gaps:?}");
    }
    // RFC 5880 6.8.4: the remote multiplier times the greater of the remote transmit interval and the local
    // receive interval.
    assert_eq!(net.status(0).detection_time, Some(MS * 600));
    assert_eq!(net.status(0).transmit_interval, Some(MS * 200));
}

#[test]
fn one_missed_packet_leaves_room_for_the_next() {
    // RFC 5880 6.8.7: at most 90 % of the interval with multiplier 1.
    let mut net = Net::both(times(100, 1), times(100, 1));
    net.run(SEC * 3);
    let gaps = net.gaps(0, SEC * 30);
    assert!(gaps.iter().all(|g| *g >= MS * 75 && *g <= MS * 90), "{gaps:?}");
    assert_eq!(net.status(0).ups, 1);
}

#[test]
fn silence_is_noticed_after_the_detection_time() {
    let mut net = up();
    let cut = net.now;
    net.lose = Box::new(|_| true);
    net.run(SEC);
    for end in 0..2 {
        let (at, change) = net.changes[end].last().copied().unwrap();
        assert_eq!((change.from, change.to, change.cause), (State::Up, State::Down, Cause::Expired));
        assert!(change.is_loss());
        assert!(at - cut > MS * 90 && at - cut <= MS * 151, "{:?}", at - cut);
    }
    assert_eq!(net.status(0).diagnostic, Diagnostic::EXPIRED);
    assert_eq!(net.status(0).remote_discriminator, 0);
    net.lose = Box::new(|_| false);
    net.run(SEC * 3);
    assert_eq!(net.states(), [State::Up, State::Up]);
}

#[test]
fn a_path_that_fails_one_way_takes_both_ends_down() {
    let mut net = up();
    net.lose = Box::new(|from| from == 0);
    net.run(MS * 300);
    assert_eq!(net.changes[1].last().unwrap().1.cause, Cause::Expired);
    let reported = net.changes[0].last().unwrap().1;
    assert_eq!(reported.cause, Cause::NeighborDown(Diagnostic::EXPIRED));
    assert!(reported.is_loss());
    assert_eq!(net.status(0).diagnostic, Diagnostic::NEIGHBOR_DOWN);
    // It stays that way: packets of the first end arrive, those of the second do not.
    net.run(SEC * 5);
    assert_ne!(net.states()[0], State::Up);
    assert_ne!(net.states()[1], State::Up);
}

#[test]
fn lost_packets_below_the_multiplier_do_no_harm() {
    let mut net = Net::both(times(50, 3), times(50, 3));
    net.run(SEC * 3);
    let mut count = 0;
    net.lose = Box::new(move |_| {
        count += 1;
        count % 3 == 0
    });
    net.run(SEC * 120);
    assert_eq!((net.status(0).ups, net.status(1).ups), (1, 1));
}

#[test]
fn new_times_are_polled_and_hold_when_the_other_end_knows() {
    let mut net = up();
    let before = net.sent.len();
    let now = net.now;
    net.ends[0].set(endpoint(0), times(400, 5), now);
    // RFC 5880 6.8.3: the old interval applies until the Poll Sequence ends.
    net.delay = MS * 60;
    net.run(SEC);
    let mine: Vec<_> = net.sent[before..].iter().filter(|s| s.from == 0).collect();
    assert!(
        mine[0].packet.poll && mine[0].packet.desired_min_tx == 400_000 && mine[0].packet.multiplier == 5
    );
    let polls = mine.iter().filter(|s| s.packet.poll).count();
    assert!((2..=6).contains(&polls), "{polls} polls in the 120 ms until the answer");
    let early: Vec<_> = mine.iter().filter(|s| s.at < now + MS * 120).collect();
    assert!(early.len() >= 3, "the old pace goes on: {}", early.len());
    assert!(net.sent[before..].iter().any(|s| s.from == 1 && s.packet.r#final && !s.packet.poll));
    assert_eq!(net.status(1).detection_time, Some(MS * 2000));
    assert_eq!(net.status(0).transmit_interval, Some(MS * 400));
    // The other end may now send at the longer interval, and the detection time follows.
    assert_eq!(net.status(0).detection_time, Some(MS * 1200));
    let now = net.now;
    net.ends[0].set(endpoint(0), times(50, 3), now);
    net.run(SEC);
    assert_eq!(net.status(1).detection_time, Some(MS * 150));
    assert_eq!(net.states(), [State::Up, State::Up]);
    assert_eq!((net.status(0).ups, net.status(1).ups), (1, 1));
}

#[test]
fn changes_in_quick_succession_lose_no_session() {
    let mut net = up();
    net.delay = MS * 20;
    for step in 0..40u64 {
        let now = net.now;
        net.ends[0].set(endpoint(0), times([50, 700, 20, 300][usize::try_from(step % 4).unwrap()], 3), now);
        net.run(MS * 15);
    }
    net.run(SEC * 5);
    assert_eq!((net.status(0).ups, net.status(1).ups), (1, 1));
    assert_eq!(net.status(1).detection_time, Some(MS * 900));
}

#[test]
fn a_poll_is_answered_at_once_with_final() {
    let mut net = up();
    let from = net.sent.len();
    let mut poll = packet(&net, 0, State::Up);
    poll.poll = true;
    net.inject(0, &poll).unwrap();
    let answer = net.sent[from..].iter().find(|s| s.from == 0).unwrap();
    assert!(answer.packet.r#final && !answer.packet.poll);
    assert_eq!(answer.at, net.now);
}

#[test]
fn who_requires_no_packets_gets_none() {
    let mut net = up();
    let mut quiet = packet(&net, 0, State::Up);
    quiet.required_min_rx = 0;
    net.inject(0, &quiet).unwrap();
    net.lose = Box::new(|_| true);
    let from = net.sent.len();
    net.run(MS * 120);
    assert_eq!(net.sent[from..].iter().filter(|s| s.from == 0).count(), 0);
    assert_eq!(net.status(0).transmit_interval, None);
    // When it is lost, its interval of 0 no longer applies: otherwise no end would ever restart.
    net.run(SEC * 3);
    assert!(net.sent[from..].iter().any(|s| s.from == 0));
}

#[test]
fn demand_mode_of_the_other_end_is_respected() {
    let mut net = up();
    let mut demand = packet(&net, 0, State::Up);
    demand.demand = true;
    net.lose = Box::new(|_| true);
    let from = net.sent.len();
    for _ in 0..20 {
        net.inject(0, &demand).unwrap();
        net.run(MS * 50);
    }
    assert_eq!(net.sent[from..].iter().filter(|s| s.from == 0).count(), 0);
    assert_eq!(net.states()[0], State::Up);
    // A Poll Sequence is sent in demand mode too.
    let now = net.now;
    net.ends[0].set(endpoint(0), times(60, 3), now);
    net.run(MS);
    assert!(net.sent[from..].iter().any(|s| s.from == 0 && s.packet.poll));
}

#[test]
fn a_removed_session_says_so_and_is_forgotten() {
    let mut net = up();
    let now = net.now;
    net.ends[0].remove(&endpoint(0), now);
    net.run(SEC * 2);
    assert!(net.ends[0].is_empty());
    assert!(net.ends[0].poll_timeout().is_none());
    let (_, change) = net.changes[1].last().unwrap();
    assert_eq!((change.to, change.cause), (State::Down, Cause::NeighborAdminDown));
    assert!(!change.is_loss());
    let last: Vec<_> =
        net.sent.iter().filter(|s| s.from == 0 && s.packet.state == State::AdminDown).collect();
    assert_eq!(last.len(), 5);
    assert!(last.iter().all(|s| s.packet.diagnostic == Diagnostic::ADMIN_DOWN));
    // A session can be added again while it sends AdminDown packets.
    let now = net.now;
    net.ends[0].set(endpoint(0), times(50, 3), now);
    net.run(SEC * 3);
    assert_eq!(net.states(), [State::Up, State::Up]);
    let now = net.now;
    net.ends[0].remove(&endpoint(0), now);
    net.ends[0].set(endpoint(0), times(50, 3), now);
    net.run(SEC * 3);
    assert_eq!(net.states(), [State::Up, State::Up]);
}

/// RFC 5880 6.8.16: AdminDown is sent for one Detection Time of the other end; 6.8.7: never faster than it
/// accepts.
#[test]
fn farewells_last_for_a_detection_time_at_the_pace_of_the_other_end() {
    for (interval, multiplier, required) in
        [(50, 3, 50), (300, 3, 300), (50, 3, 3000), (2000, 1, 50), (100, 20, 10)]
    {
        let required_min_rx = MS * required;
        let mut net = Net::both(
            times(interval, multiplier),
            Parameters { required_min_rx, ..times(interval, multiplier) },
        );
        net.run(SEC * 30);
        assert_eq!(net.states(), [State::Up, State::Up]);
        let detection = net.status(1).detection_time.unwrap();
        let slowest = required_min_rx.max(MS * u32::try_from(interval).unwrap());
        assert_eq!(detection, slowest * u32::from(multiplier));
        let (now, before) = (net.now, net.sent.len());
        net.ends[0].remove(&endpoint(0), now);
        // The first three packets are lost.
        let mut lost = 0;
        net.lose = Box::new(move |from| {
            lost += usize::from(from == 0);
            from == 0 && lost <= 3
        });
        net.run(detection * 2);
        assert!(net.ends[0].is_empty());
        let said: Vec<_> = net.sent[before..].iter().filter(|s| s.from == 0).map(|s| s.at).collect();
        assert!(*said.last().unwrap() >= now + detection, "{interval} {multiplier} {required}");
        assert!(
            said.windows(2).all(|w| w[1] - w[0] >= slowest * 3 / 4),
            "{interval} {multiplier} {required}"
        );
        if said.len() > 3 {
            assert_eq!(net.status(1).remote_state, State::AdminDown);
        }
    }
}

#[test]
fn an_end_that_begins_anew_is_no_loss() {
    let mut net = up();
    net.ends[1] = Bfd::new(99);
    let now = net.now;
    net.ends[1].set(endpoint(1), times(50, 3), now);
    net.run(SEC * 3);
    let down = net.changes[0].iter().find(|(_, c)| c.from == State::Up).unwrap().1;
    assert_eq!(down.cause, Cause::NeighborRestarted);
    assert!(!down.is_loss());
    assert_eq!(net.states(), [State::Up, State::Up]);
}

#[test]
fn only_a_reason_makes_a_neighbors_down_a_loss() {
    // RFC 5880 4.1: 1 expired, 3 neighbor down, 4 forwarding plane reset, 5 path down.
    for (diagnostic, known, loss) in [
        (0, true, true),
        (0, false, false),
        (1, true, true),
        (1, false, true),
        (3, true, true),
        (4, true, true),
        (5, true, true),
    ] {
        let mut net = up();
        let mut down = packet(&net, 0, State::Down);
        down.diagnostic = Diagnostic(diagnostic);
        if !known {
            down.your_discriminator = 0;
        }
        net.inject(0, &down).unwrap();
        let change = net.changes[0].last().unwrap().1;
        assert_eq!((change.to, change.is_loss()), (State::Down, loss), "{diagnostic} {known}");
    }
}

#[test]
fn the_c_bit_is_reported_and_never_set() {
    let mut net = up();
    assert!(net.sent.iter().all(|s| !s.packet.independent && s.packet.required_min_echo_rx == 0));
    let mut independent = packet(&net, 0, State::Up);
    independent.independent = true;
    net.lose = Box::new(|_| true);
    net.inject(0, &independent).unwrap();
    net.run(SEC);
    assert!(net.changes[0].last().unwrap().1.remote_independent);
}

#[test]
fn strangers_and_wrong_packets_change_nothing() {
    let mut net = up();
    let good = packet(&net, 0, State::Down);
    let now = net.now;
    let bytes = good.encode();
    let mut try_one = |change: &dyn Fn(&mut Received<'_>)| {
        let mut datagram = datagram(0, &bytes);
        change(&mut datagram);
        net.ends[0].receive(&datagram, now)
    };
    // RFC 5881 5: TTL 254 means that a router was passed.
    assert_eq!(try_one(&|d| d.ttl = Some(254)), Err(Refused::Ttl));
    assert_eq!(try_one(&|d| d.ttl = None), Err(Refused::Ttl));
    assert_eq!(try_one(&|d| d.source = address(5)), Err(Refused::UnknownSession));
    assert_eq!(try_one(&|d| d.path = Path::Multihop), Err(Refused::UnknownSession));
    assert_eq!(try_one(&|d| d.destination = address(7)), Err(Refused::UnknownSession));
    let mut wrong = good;
    wrong.your_discriminator ^= 1;
    assert_eq!(net.inject(0, &wrong), Err(Refused::UnknownSession));
    assert_eq!(net.states(), [State::Up, State::Up]);
    assert_eq!(net.refused(0, Refused::Ttl), 2);
    net.inject(0, &good).unwrap();
    assert_eq!(net.states()[0], State::Down);
}

#[test]
fn a_multihop_session_takes_any_ttl_and_link_local_ones_look_at_the_link() {
    let mut bfd = Bfd::new(7);
    let now = std::time::Instant::now();
    let multihop = Endpoint { path: Path::Multihop, local: None, ..endpoint(0) };
    let link =
        Endpoint { remote: "fe80::1".parse().unwrap(), local: None, interface: 4, path: Path::SingleHop };
    bfd.set(multihop, times(300, 3), now);
    bfd.set(link, times(300, 3), now);
    let hello = Packet {
        diagnostic: Diagnostic::NONE,
        state: State::Down,
        poll: false,
        r#final: false,
        independent: false,
        demand: false,
        multiplier: 3,
        my_discriminator: 9,
        your_discriminator: 0,
        desired_min_tx: 1_000_000,
        required_min_rx: 300_000,
        required_min_echo_rx: 0,
    }
    .encode();
    let far = Received { path: Path::Multihop, ttl: Some(3), ..datagram(0, &hello) };
    bfd.receive(&far, now).unwrap();
    assert_eq!(bfd.status(&multihop, now).unwrap().state, State::Init);
    let near =
        Received { source: link.remote, destination: "fe80::2".parse().unwrap(), ..datagram(0, &hello) };
    assert_eq!(bfd.receive(&Received { interface: 5, ..near }, now), Err(Refused::UnknownSession));
    bfd.receive(&Received { interface: 4, ..near }, now).unwrap();
    assert_eq!(bfd.status(&link, now).unwrap().state, State::Init);
}

#[test]
fn a_thousand_sessions_have_their_own_discriminators_and_share_no_beat() {
    let mut bfd = Bfd::new(3);
    let now = std::time::Instant::now();
    for n in 0..1000u32 {
        let remote = std::net::Ipv4Addr::from(0x0a00_0000 + n).into();
        bfd.set(Endpoint { remote, ..endpoint(0) }, times(300, 3), now);
    }
    let mut ids: Vec<u32> = bfd.sessions(now).map(|(_, s)| s.discriminator).collect();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() == 1000 && ids[0] != 0);
    assert_eq!(std::iter::from_fn(|| bfd.poll_transmit(now)).count(), 1000);
    // Only due sessions send: about half of them after the middle of the jitter range.
    let later = now + MS * 875;
    bfd.handle_timeout(later);
    let half = std::iter::from_fn(|| bfd.poll_transmit(later)).count();
    assert!((400..600).contains(&half), "{half}");
}

/// A host that was suspended for longer than the detection time cannot know whether the other end sent
/// packets.
#[test]
fn a_late_look_takes_no_silence_for_a_loss_and_sees_a_real_one_an_interval_later() {
    let mut net = up();
    // The host is suspended for 300 ms; packets sent meanwhile are not in the sockets yet.
    let stood = net.now + MS * 300;
    net.ends[0].late(stood);
    net.ends[0].handle_timeout(stood);
    assert_eq!(net.status(0).state, State::Up);
    // One more interval without a packet is a loss, however late the next call is.
    let after = stood + MS * 51;
    net.ends[0].late(after);
    net.ends[0].handle_timeout(after);
    assert_eq!(net.status(0).state, State::Down);
}
