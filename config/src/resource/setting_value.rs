//! Types of settings, and the parsers of their text values.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::duration;

/// Maximum duration: one year.
const DURATION_MAX: Duration = Duration::from_secs(31_536_000);
/// Maximum length of a path in octets (Linux `PATH_MAX` without the terminator).
const PATH_MAX: usize = 4_095;
/// Maximum number of interface name prefixes, since each adds rules that packets pass.
const PREFIXES_MAX: usize = 32;
/// Maximum number of failsafe ports per direction.
const FAILSAFES_MAX: usize = 1_000;

/// A type of setting values.
pub(super) trait SettingValue: Sized {
    const EXPECTED: &'static str;
    /// Parses `text`, which is not empty and has no surrounding blanks.
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

    /// The limit prevents an overflow when the duration is added to a time.
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

/// Packet mark bits; at least two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkMask(u32);

impl MarkMask {
    /// Creates a mask; `None` if fewer than two bits are set.
    #[must_use]
    pub fn new(bits: u32) -> Option<Self> {
        (bits.count_ones() >= 2).then_some(Self(bits))
    }

    /// Returns the bit mask.
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

/// Declares an enum of words that are parsed case-insensitively.
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
    /// Minimum severity of logged messages.
    Severity: "write debug, info, warning, error, critical or none" {
        /// All messages.
        Debug = "debug",
        /// Information and more severe.
        Info = "info",
        /// Warnings and more severe.
        Warning = "warning" | "warn",
        /// Errors and more severe.
        Error = "error",
        /// Only errors that end the process.
        Critical = "critical" | "fatal",
        /// No messages.
        Off = "none",
    }
}

words! {
    /// Action for packets from a workload to its host.
    HostAction: "write DROP, ACCEPT or RETURN" {
        /// Drop the packet.
        Drop = "drop",
        /// Accept the packet.
        Accept = "accept",
        /// Continue with the host's own rules.
        Return = "return",
    }
}

words! {
    /// Action for packets that policy allowed.
    AllowAction: "write ACCEPT or RETURN" {
        /// Accept the packet immediately.
        Accept = "accept",
        /// Continue with the host's own rules.
        Return = "return",
    }
}

words! {
    /// Position of Tortie's rules among those of other programs.
    InsertMode: "write insert or append" {
        /// Before the other rules.
        Insert = "insert",
        /// After the other rules.
        Append = "append",
    }
}

/// A port that stays open regardless of policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Failsafe {
    /// True for UDP, false for TCP.
    pub udp: bool,
    /// Port number.
    pub port: u16,
}

const fn tcp(port: u16) -> Failsafe {
    Failsafe { udp: false, port }
}

const fn udp(port: u16) -> Failsafe {
    Failsafe { udp: true, port }
}

/// Defaults of Felix 2 (SSH and DHCP), and as in later Felix versions BGP. Since Tortie itself speaks BGP and
/// BFD (RFC 5881, RFC 5883), a policy on host endpoints must not cut the routes through which it could be
/// corrected.
pub(super) fn default_inbound() -> Vec<Failsafe> {
    vec![tcp(22), tcp(179), udp(68), udp(3784), udp(4784)]
}

/// Defaults of Felix 2 (all etcd ports ever used, DNS and DHCP), and BGP with BFD.
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
