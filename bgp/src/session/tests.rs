//! Tests of the rate limits for failures and refresh requests.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::damping::{Damping, RefreshPace, RefreshTime};

#[test]
fn a_few_failures_are_free_and_then_one_in_five_seconds() {
    let pace = Duration::from_secs(5);
    let start = Instant::now();
    let mut damping = Damping::default();
    let mut let_in = Vec::new();
    for second in 0..60 {
        let now = start + Duration::from_secs(second);
        // One hundred attempts per second, all of them failing.
        for _ in 0..100 {
            if !damping.refuses(now) {
                let_in.push(second);
                damping.note_failure(now);
            }
        }
    }
    assert_eq!(let_in.iter().filter(|s| **s == 0).count(), 11);
    assert!(let_in.len() <= 11 + 60 / 5, "{let_in:?}");
    // A peer that works again waits 5 s at most.
    assert!(!damping.refuses(start + Duration::from_secs(60) + pace));
    // Rare failures are never refused.
    let mut rare = Damping::default();
    for n in 0..1000 {
        let now = start + pace * n;
        assert!(!rare.refuses(now));
        rare.note_failure(now);
    }
}

proptest! {
    /// Whatever the pattern of requests, a peer is sent its routes at most ten times and then once per 5 s,
    /// and its last request is always answered.
    #[test]
    fn requests_are_answered_at_a_pace_and_none_is_lost(
        pauses in proptest::collection::vec((0_u64..3_000, 0_usize..2), 1..400),
    ) {
        let begin = Instant::now();
        let (mut pace, mut now, mut due) = (RefreshPace::default(), begin, None);
        let (mut answers, mut open) = (Vec::new(), [false; 2]);
        let mut give = |pace: &mut RefreshPace, family: usize, now, due: &mut Option<Instant>, open: &mut [bool; 2]| {
            open[family] = true;
            match pace.request(family, now) {
                RefreshTime::Now => {
                    answers.push(now);
                    open[family] = false;
                }
                RefreshTime::At(at) => *due = Some(at),
                RefreshTime::WithAnother => assert!(due.is_some()),
            }
        };
        let end = Duration::from_secs(60);
        for (pause, family) in pauses.into_iter().map(Some).chain([None]).map(|p| p.unwrap_or((60_000, 2))) {
            let next = now + Duration::from_millis(pause);
            while let Some(at) = due.filter(|at| *at <= next) {
                due = None;
                for (family, _) in pace.take_waiting().into_iter().enumerate().filter(|(_, waits)| *waits) {
                    give(&mut pace, family, at, &mut due, &mut open);
                }
            }
            now = next;
            if family < 2 {
                give(&mut pace, family, now, &mut due, &mut open);
            }
        }
        prop_assert_eq!((open, due), ([false; 2], None));
        for (at, first) in answers.iter().enumerate() {
            let within = answers.iter().skip(at).filter(|answer| **answer < *first + end).count();
            prop_assert!(within <= 10 + 12, "{within} answers in a minute");
        }
    }
}
