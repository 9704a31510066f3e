//! Types of the agent's parameters, and how their texts are read.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::duration;

/// A year.
const DURATION_MAX: Duration = Duration::from_secs(31_536_000);
/// Octets of a path (Linux, `PATH_MAX` with its end).
const PATH_MAX: usize = 4_095;
/// Prefixes of interfaces: each is in rules that packets pass.
const PREFIXES_MAX: usize = 32;
/// Ports that stay open, of one direction.
const FAILSAFES_MAX: usize = 1_000;

/// A type that a parameter can have.
pub(super) trait SettingValue: Sized {
    const EXPECTED: &'static str;
    /// `text` is not empty and has no blanks around it.
    fn from_text(text: &str) -> Option<Self>;
    fn to_text(&self) -> String;
}

impl SettingValue for bool {
    const EXPECTED: &'static str = "write true or false (also 1, yes, y, t and 0, no, n, f)";

    fn from_text(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "y" | "t" => Some(true),
            "false" | "0" | "no" | "n" | "f" => Some(false),
            _ => None,
        }
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for Duration {
    const EXPECTED: &'static str = "write seconds up to 31536000 (a year), such as 30 or 0.5";

    /// What is added to a time must not lead out of all times.
    fn from_text(text: &str) -> Option<Self> {
        duration::parse(text).filter(|time| *time <= DURATION_MAX)
    }

    fn to_text(&self) -> String {
        self.as_secs_f64().to_string()
    }
}

impl SettingValue for u16 {
    const EXPECTED: &'static str = "write a port from 1 to 65535";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().filter(|port| *port != 0)
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for u32 {
    const EXPECTED: &'static str =
        "write a number from 1 to 4294967295, or in hexadecimal such as 0xff000000";

    fn from_text(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let number = match hex {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
                Self::from_str_radix(digits, 16).ok()
            }
            Some(_) => None,
            None => text.parse().ok(),
        };
        number.filter(|number| *number != 0)
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

/// Bits of a packet's mark; at least two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkMask(u32);

impl MarkMask {
    /// `None` when there are fewer than two bits.
    #[must_use]
    pub fn new(bits: u32) -> Option<Self> {
        (bits.count_ones() >= 2).then_some(Self(bits))
    }

    /// The bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl Default for MarkMask {
    fn default() -> Self {
        Self(0xff00_0000)
    }
}

impl SettingValue for MarkMask {
    const EXPECTED: &'static str = "write a number with at least two bits set, such as 0xff000000";

    fn from_text(text: &str) -> Option<Self> {
        u32::from_text(text).and_then(Self::new)
    }

    fn to_text(&self) -> String {
        format!("{:#010x}", self.0)
    }
}

impl SettingValue for Option<u32> {
    const EXPECTED: &'static str = "write an MTU from 68 to 65535, or 0 for automatic";

    fn from_text(text: &str) -> Option<Self> {
        match text.parse::<u32>().ok()? {
            0 => Some(None),
            mtu @ 68..=65535 => Some(Some(mtu)),
            _ => None,
        }
    }

    fn to_text(&self) -> String {
        self.unwrap_or(0).to_string()
    }
}

impl SettingValue for Option<Ipv4Addr> {
    const EXPECTED: &'static str = "write an IPv4 address, or none";

    fn from_text(text: &str) -> Option<Self> {
        if is_none(text) { Some(None) } else { text.parse().ok().map(Some) }
    }

    fn to_text(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |addr| addr.to_string())
    }
}

impl SettingValue for Option<PathBuf> {
    const EXPECTED: &'static str = "write an absolute path of at most 4095 octets, or none";

    fn from_text(text: &str) -> Option<Self> {
        if is_none(text) {
            return Some(None);
        }
        (text.starts_with('/') && !text.contains('\0') && text.len() <= PATH_MAX).then(|| Some(text.into()))
    }

    fn to_text(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), |path| path.to_string_lossy().into_owned())
    }
}

impl SettingValue for String {
    const EXPECTED: &'static str = "write a text";

    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn to_text(&self) -> String {
        self.clone()
    }
}

impl SettingValue for Vec<String> {
    const EXPECTED: &'static str =
        "write up to 32 prefixes of interface names with commas between, such as cali,tap";

    fn from_text(text: &str) -> Option<Self> {
        let prefix = |part: &str| {
            let part = part.trim();
            let fits = (1..=15).contains(&part.len())
                && !part.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
            fits.then(|| part.to_owned())
        };
        text.split(',').map(prefix).collect::<Option<Self>>().filter(|all| all.len() <= PREFIXES_MAX)
    }

    fn to_text(&self) -> String {
        self.join(",")
    }
}

fn is_none(text: &str) -> bool {
    text.eq_ignore_ascii_case("none")
}

/// Declares an enum of words that are read in any case.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident: $expected:literal { $($(#[$vdoc:meta])* $variant:ident = $word:literal $(| $also:literal)*,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl SettingValue for $name {
            const EXPECTED: &'static str = $expected;

            fn from_text(text: &str) -> Option<Self> {
                match text.to_ascii_lowercase().as_str() {
                    $($word $(| $also)* => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn to_text(&self) -> String {
                match self { $(Self::$variant => $word,)+ }.to_ascii_uppercase()
            }
        }
    };
}

words! {
    /// From which severity on messages are logged.
    Severity: "write debug, info, warning, error, critical or none" {
        /// Everything.
        Debug = "debug",
        /// Information and worse.
        Info = "info",
        /// Warnings and worse.
        Warning = "warning" | "warn",
        /// Errors and worse.
        Error = "error",
        /// Only what ends the process.
        Critical = "critical" | "fatal",
        /// Nothing.
        Off = "none",
    }
}

words! {
    /// What becomes of packets from a workload to its host.
    HostAction: "write DROP, ACCEPT or RETURN" {
        /// Drop.
        Drop = "drop",
        /// Accept.
        Accept = "accept",
        /// Go on with the host's own rules.
        Return = "return",
    }
}

words! {
    /// What becomes of packets that policy allowed.
    AllowAction: "write ACCEPT or RETURN" {
        /// Accept at once.
        Accept = "accept",
        /// Go on with the host's own rules.
        Return = "return",
    }
}

words! {
    /// Where rules are put in chains of others.
    InsertMode: "write insert or append" {
        /// At the top.
        Insert = "insert",
        /// At the end.
        Append = "append",
    }
}

/// A port that stays open whatever policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Failsafe {
    /// UDP instead of TCP.
    pub udp: bool,
    /// The port.
    pub port: u16,
}

const fn tcp(port: u16) -> Failsafe {
    Failsafe { udp: false, port }
}

const fn udp(port: u16) -> Failsafe {
    Failsafe { udp: true, port }
}

/// Felix 2: SSH and DHCP; and as later Felix has it, BGP. It is this process that speaks it, with BFD (RFC
/// 5881, RFC 5883) beside it: a policy on host endpoints must not take away the routes to where it could be
/// corrected.
pub(super) fn default_inbound() -> Vec<Failsafe> {
    vec![tcp(22), tcp(179), udp(68), udp(3784), udp(4784)]
}

/// Felix 2: etcd on its ports of all ages, DNS and DHCP; and BGP with BFD.
pub(super) fn default_outbound() -> Vec<Failsafe> {
    vec![tcp(179), tcp(2379), tcp(2380), tcp(4001), tcp(7001), udp(53), udp(67), udp(3784), udp(4784)]
}

impl SettingValue for Vec<Failsafe> {
    const EXPECTED: &'static str =
        "write up to 1000 ports with commas between, such as tcp:22,udp:68, or none";

    fn from_text(text: &str) -> Option<Self> {
        if is_none(text) {
            return Some(Self::new());
        }
        let port = |part: &str| {
            let (protocol, port) = part.trim().split_once(':').unwrap_or(("tcp", part.trim()));
            let port = u16::from_text(port)?;
            match protocol.to_ascii_lowercase().as_str() {
                "tcp" => Some(tcp(port)),
                "udp" => Some(udp(port)),
                _ => None,
            }
        };
        text.split(',').map(port).collect::<Option<Self>>().filter(|all| all.len() <= FAILSAFES_MAX)
    }

    fn to_text(&self) -> String {
        if self.is_empty() {
            return "none".to_owned();
        }
        let text = |f: &Failsafe| format!("{}:{}", if f.udp { "udp" } else { "tcp" }, f.port);
        self.iter().map(text).collect::<Vec<_>>().join(",")
    }
}
