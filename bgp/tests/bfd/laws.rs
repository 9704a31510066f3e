//! Properties of BFD sessions under arbitrary loss, delay and parameter changes.

use proptest::prelude::*;
use tortie_bgp::bfd::{Cause, Packet, State};

use crate::net::{MS, Net, endpoint, times};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// For any loss, delay and change of intervals: no end is Up unless a packet arrived within the detection
    /// time, no packet violates the specification, and both ends are Up again on a good link.
    #[test]
    fn any_link_and_then_a_good_one(
        seed in any::<u64>(),
        loss in 0u64..100,
        delay in 0u32..80,
        one_way in 0usize..3,
        a in (10u64..400, 1u8..6),
        b in (10u64..400, 1u8..6),
        steps in prop::collection::vec((0usize..2, 10u64..400, 1u8..6, 1u32..900), 0..12),
    ) {
        let mut net = Net::both(times(a.0, a.1), times(b.0, b.1));
        net.delay = MS * delay;
        let mut random = seed | 1;
        net.lose = Box::new(move |from| {
            random ^= random >> 12;
            random ^= random << 25;
            random ^= random >> 27;
            let draw = random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
            draw % 100 < loss && (one_way == 2 || one_way == from)
        });
        for (end, interval, multiplier, pause) in steps {
            let now = net.now;
            net.ends[end].set(endpoint(end), times(interval, multiplier), now);
            net.run(MS * pause);
        }
        net.run(MS * 5000);
        for sent in &net.sent {
            let p: &Packet = &sent.packet;
            prop_assert!(!(p.poll && p.r#final));
            prop_assert!(p.state == State::Up || p.desired_min_tx >= 1_000_000);
            prop_assert!(p.state != State::Up || p.your_discriminator != 0);
            prop_assert!(p.state < State::Init || p.your_discriminator != 0);
        }
        for end in 0..2 {
            for (_, change) in &net.changes[end] {
                let step = (change.from, change.to);
                prop_assert!(matches!(
                    step,
                    (State::Down, State::Init | State::Up)
                        | (State::Init, State::Up | State::Down)
                        | (State::Up, State::Down)
                ), "{step:?}");
                prop_assert_eq!(change.is_loss(), matches!(change.cause, Cause::Expired | Cause::NeighborDown(_)) && change.from == State::Up);
            }
        }
        net.lose = Box::new(|_| false);
        net.delay = MS;
        net.run(MS * 8000);
        prop_assert_eq!(net.states(), [State::Up, State::Up]);
        // Steady state: each detection time covers the interval of the other end.
        for end in 0..2 {
            let (mine, theirs) = (net.status(end), net.status(1 - end));
            let least = theirs.transmit_interval.unwrap();
            prop_assert!(mine.detection_time.unwrap() >= least * u32::from(mine.remote_multiplier));
            prop_assert_eq!(mine.remote_state, State::Up);
        }
        let ups = [net.status(0).ups, net.status(1).ups];
        net.run(MS * 20_000);
        // With multiplier 1, jitter leaves a margin of 10 %, more than the delay here.
        prop_assert_eq!(ups, [net.status(0).ups, net.status(1).ups]);
    }

    /// A cut link is detected within the detection time, measured from the last packet that arrived.
    #[test]
    fn a_cut_is_seen_in_time(interval in 10u64..500, multiplier in 1u8..6, offset in 0u32..1000) {
        let mut net = Net::both(times(interval, multiplier), times(interval, multiplier));
        net.run(MS * 5000 + MS * offset);
        prop_assert_eq!(net.states(), [State::Up, State::Up]);
        let cut = net.now;
        net.lose = Box::new(|_| true);
        net.run(MS * 4000);
        let detection = MS * u32::try_from(interval).unwrap() * u32::from(multiplier);
        for end in 0..2 {
            let (at, change) = net.changes[end].last().copied().unwrap();
            prop_assert_eq!(change.cause, Cause::Expired);
            prop_assert!(at - cut <= detection + MS);
            let last = MS * u32::try_from(interval).unwrap();
            prop_assert!(at - cut + last >= detection);
        }
    }
}
