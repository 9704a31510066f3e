//! Damping over a minute.

use std::time::{Duration, Instant};

use super::damping::Damping;

#[test]
fn a_few_failures_are_free_and_then_one_in_five_seconds() {
    let pace = Duration::from_secs(5);
    let start = Instant::now();
    let mut damping = Damping::default();
    let mut let_in = Vec::new();
    for second in 0..60 {
        let now = start + Duration::from_secs(second);
        // A hundred attempts a second, and all fail.
        for _ in 0..100 {
            if !damping.refuses(now) {
                let_in.push(second);
                damping.note_failure(now);
            }
        }
    }
    assert_eq!(let_in.iter().filter(|s| **s == 0).count(), 11);
    assert!(let_in.len() <= 11 + 60 / 5, "{let_in:?}");
    // One that is well again waits for the pace at most.
    assert!(!damping.refuses(start + Duration::from_secs(60) + pace));
    // Rare failures are never refused.
    let mut rare = Damping::default();
    for n in 0..1000 {
        let now = start + pace * n;
        assert!(!rare.refuses(now));
        rare.note_failure(now);
    }
}
