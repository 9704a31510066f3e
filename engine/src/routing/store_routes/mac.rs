//! MAC addresses of VXLAN devices, which every host derives from the node's name unless its value is stored.

use sha1::{Digest, Sha1};
use tortie_config::key::IpFamily;
use tortie_config::resource::MacAddr;

/// First octet of a derived address: locally administered, unicast.
const FIRST: u8 = 0x66;

/// Returns the MAC address that Calico derives from a node's name: `66` and the first five octets of the
/// SHA-1 of the name, for IPv6 of the name with `-v6`.
#[must_use]
pub fn derived_mac(node: &str, family: IpFamily) -> MacAddr {
    let [a, b, c, d, e, ..] = <[u8; 20]>::from(match family {
        IpFamily::V4 => Sha1::digest(node),
        IpFamily::V6 => Sha1::digest(format!("{node}-v6")),
    });
    MacAddr([FIRST, a, b, c, d, e])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values by `printf %s NAME | sha1sum`.
    #[test]
    fn a_name_gives_one_address_per_family() {
        assert_eq!(derived_mac("abc", IpFamily::V4).to_string(), "66:a9:99:3e:36:47");
        assert_eq!(derived_mac("h1", IpFamily::V4).to_string(), "66:ac:4a:e9:72:85");
        assert_eq!(derived_mac("h1", IpFamily::V6).to_string(), "66:26:f6:bd:f8:0b");
    }
}
