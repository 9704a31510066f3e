//! Times in blocks of Calico 3: the cooling down of released addresses, the age of a claim, and the first
//! sequence number.

use std::time::Duration;

use jiff::{Timestamp, Unit};
use tortie_config::resource::{Block, IpamConfig};

/// Age from which an empty block of another host may be taken over. Its owner may be about to allocate from a
/// younger one.
const SETTLED: Duration = Duration::from_secs(60);

/// Formats a time as Calico does, in whole seconds.
pub(super) fn text(now: Timestamp) -> String {
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// Returns the sequence number of a block's first write.
pub(super) fn first_sequence(now: Timestamp) -> u64 {
    u64::try_from(now.as_nanosecond()).unwrap_or(0)
}

/// Returns true if released addresses cool down.
pub(super) fn is_needed(config: &IpamConfig) -> bool {
    config.cooldown_seconds.is_some_and(|seconds| seconds > 0)
}

/// Returns true if a raw block may have addresses that cool down.
pub(super) fn may_cool(value: &[u8]) -> bool {
    const MEMBER: &[u8] = b"\"releasedAt\"";
    value.windows(MEMBER.len()).any(|window| window == MEMBER)
}

/// Frees the addresses of a block whose cooling down is over. An address with a time that cannot be parsed stays
/// as it is.
pub(super) fn sweep(block: &mut Block, now: Timestamp, config: &IpamConfig) {
    let cooldown = Duration::from_secs(config.cooldown_seconds.unwrap_or(0).into());
    block.sweep(|released| is_older(released, now, cooldown));
}

/// Returns true if the owner claimed a block long enough ago. Calico before 3.32 recorded no time.
pub(super) fn is_settled(block: &Block, now: Timestamp) -> bool {
    block.claim_time().is_none_or(|claimed| is_older(claimed, now, SETTLED))
}

fn is_older(time: &str, now: Timestamp, age: Duration) -> bool {
    let Ok(time) = time.parse::<Timestamp>() else { return false };
    let Ok(passed) = (now - time).total(Unit::Second) else { return false };
    passed >= age.as_secs_f64()
}
