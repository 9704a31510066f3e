//! An IP address with a prefix length, in the form of results and requests.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address with the prefix length of its network; host bits are kept, as in `10.1.2.3/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// The address with its host bits.
    pub ip: IpAddr,
    /// Prefix length, 0 to 32 or 128.
    pub len: u8,
}

impl Address {
    /// Creates a host address: /32 or /128.
    #[must_use]
    pub fn host(ip: IpAddr) -> Self {
        Self { ip, len: if ip.is_ipv4() { 32 } else { 128 } }
    }
}

/// Expected form, for error messages.
pub(in crate::plugins::cni) const EXPECTED: &str = "write ADDRESS/LENGTH, such as 10.1.2.3/24";

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (ip, len) = text.split_once('/').ok_or(EXPECTED)?;
        let ip: IpAddr = ip.parse().map_err(|_| EXPECTED)?;
        let max = Self::host(ip).len;
        let digits = !len.is_empty() && len.bytes().all(|b| b.is_ascii_digit());
        let len = len.parse().ok().filter(|len| digits && *len <= max).ok_or(EXPECTED)?;
        Ok(Self { ip, len })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.len)
    }
}

/// Parses a requested address with or without a prefix length. The length is ignored: the pool determines it,
/// and requests contain whatever the user wrote.
pub(in crate::plugins::cni) fn asked(text: &str) -> Result<IpAddr, &'static str> {
    const EXPECTED: &str = "write ADDRESS or ADDRESS/LENGTH, such as 10.1.2.3";
    if let Ok(ip) = text.parse() {
        return Ok(ip);
    }
    text.parse::<Address>().map(|address| address.ip).map_err(|_| EXPECTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_their_host_bits() {
        for text in ["10.1.2.3/24", "0.0.0.0/0", "2001:db8::5/64", "10.0.0.1/32"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        // The conventions write a group of IPv6 with a leading zero.
        assert_eq!("3ffe:ffff:0:01ff::1/64".parse::<Address>().unwrap().to_string(), "3ffe:ffff:0:1ff::1/64");
        for text in ["", "10.1.2.3", "10.1.2.3/", "10.1.2.3/33", "10.1.2.3/+2", "::1/129", "x/8", "10.1.2/8"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert_eq!(asked("10.2.2.42/24").unwrap().to_string(), "10.2.2.42");
        assert_eq!(asked("2001:db8::5").unwrap().to_string(), "2001:db8::5");
        assert!(asked("10.2.2.42/x").is_err() && asked("").is_err());
    }
}
