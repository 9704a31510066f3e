//! Proptest strategies for prefixes, for this crate and others (feature `test-strategies`).

use proptest::prelude::*;

use crate::Cidr;

/// Generates prefixes with four significant high bits and lengths 0 to 8, in both address families, so that
/// many of them cover each other.
pub fn prefix() -> impl Strategy<Value = Cidr> {
    (any::<bool>(), 0_u8..16, 0_u8..=8).prop_map(|(v4, bits, len)| {
        let high = bits << 4;
        if v4 {
            Cidr::v4(std::net::Ipv4Addr::new(high, 0, 0, 0), len)
        } else {
            Cidr::v6(std::net::Ipv6Addr::from(u128::from(high) << 120), len)
        }
    })
}
