//! Types of settings, and the parsers of their text values.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use super::bgp_configuration::ProgramClusterRoutes;
use super::duration;
use super::names::{MAC, MacAddr};
use tortie_net::Cidr;

/// Maximum duration: one year.
const DURATION_MAX: Duration = Duration::from_secs(31_536_000);
/// Maximum length of a path in octets (Linux `PATH_MAX` without the terminator).
const PATH_MAX: usize = 4_095;
/// Maximum number of interface name prefixes, since each adds rules that packets pass.
const PREFIXES_MAX: usize = 32;
/// Maximum number of networks in a list.
const NETWORKS_MAX: usize = 10_000;
/// Maximum number of failsafe ports per direction.
const FAILSAFES_MAX: usize = 1_000;

/// Maximum length of a region's name: with its prefix it is a label of 63 characters in a namespace.
const REGION_MAX: usize = 46;

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

impl SettingValue for Option<Ipv6Addr> {
    const EXPECTED: &'static str = "write an IPv6 address, or none";

    fn from_text(text: &str) -> Option<Self> {
        if is_none(text) { Some(None) } else { text.parse().ok().map(Some) }
    }

    fn to_text(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |addr| addr.to_string())
    }
}

impl SettingValue for Option<MacAddr> {
    const EXPECTED: &'static str = MAC;

    fn from_text(text: &str) -> Option<Self> {
        if is_none(text) { Some(None) } else { text.parse().ok().map(Some) }
    }

    fn to_text(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |mac| mac.to_string())
    }
}

impl SettingValue for Option<bool> {
    const EXPECTED: &'static str = "write true or false, or none for automatic";

    fn from_text(text: &str) -> Option<Self> {
        if is_none(text) { Some(None) } else { bool::from_text(text).map(Some) }
    }

    fn to_text(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |value| value.to_string())
    }
}

impl SettingValue for Option<ProgramClusterRoutes> {
    const EXPECTED: &'static str =
        "write Enabled, EnabledIPIPOnly, EnabledNoEncapOnly or Disabled, or none for routes from BGP";

    fn from_text(text: &str) -> Option<Self> {
        use ProgramClusterRoutes::{All, Ipip, Never, NoEncap};
        if is_none(text) {
            return Some(None);
        }
        let mut words = [All, Ipip, NoEncap, Never].into_iter();
        words.find(|word| word.as_str().eq_ignore_ascii_case(text)).map(Some)
    }

    fn to_text(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |value| value.to_string())
    }
}

impl SettingValue for Vec<Cidr> {
    const EXPECTED: &'static str =
        "write networks or addresses with commas between, such as 192.0.2.0/24,2001:db8::1, or none";

    fn from_text(text: &str) -> Option<Self> {
        if is_none(text) {
            return Some(Self::new());
        }
        let network = |part: &str| {
            let part = part.trim();
            let address = part.parse::<IpAddr>().ok().map(Cidr::host);
            address.or_else(|| part.parse().ok())
        };
        text.split(',').map(network).collect::<Option<Self>>().filter(|all| all.len() <= NETWORKS_MAX)
    }

    fn to_text(&self) -> String {
        if self.is_empty() {
            return "none".to_owned();
        }
        self.iter().map(Cidr::to_string).collect::<Vec<_>>().join(",")
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

/// Name of a region of OpenStack, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Region(String);

impl Region {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        Some(&*self.0).filter(|name| !name.is_empty())
    }
}

impl SettingValue for Region {
    const EXPECTED: &'static str =
        "write the name of a region: at most 46 lower-case letters, digits and dashes, or none";

    fn from_text(text: &str) -> Option<Self> {
        if text == "none" {
            return Some(Self::default());
        }
        let is_label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let is_name = text.len() <= REGION_MAX
            && text.bytes().all(is_label)
            && !text.starts_with('-')
            && !text.ends_with('-');
        is_name.then(|| Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.name().unwrap_or("none").to_owned()
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
        Debug = "debug" | "trace",
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
    /// Network of the other end; `None` for any.
    pub net: Option<Cidr>,
}

const fn tcp(port: u16) -> Failsafe {
    Failsafe { udp: false, port, net: None }
}

const fn udp(port: u16) -> Failsafe {
    Failsafe { udp: true, port, net: None }
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

/// Defaults of Calico 3, and BFD: with the ports of etcd 3, of Calico's own servers and of Kubernetes.
pub(super) fn calico3_inbound() -> Vec<Failsafe> {
    let ports = [22, 179, 2379, 2380, 5473, 6443, 6666, 6667].map(tcp);
    ports.into_iter().chain([68, 3784, 4784].map(udp)).collect()
}

/// As [`calico3_inbound`], for remote ports.
pub(super) fn calico3_outbound() -> Vec<Failsafe> {
    let ports = [179, 2379, 2380, 5473, 6443, 6666, 6667].map(tcp);
    ports.into_iter().chain([53, 67, 3784, 4784].map(udp)).collect()
}

impl Failsafe {
    /// Parses `22`, `tcp:22`, `tcp:192.0.2.0/24:22` or `tcp:[2001:db8::/32]:22`. An address is a network of
    /// one.
    fn from_text(text: &str) -> Option<Self> {
        let (protocol, rest) = text.split_once(':').unwrap_or(("tcp", text));
        let udp = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => false,
            "udp" => true,
            _ => return None,
        };
        let (net, port) = match rest.rsplit_once(':') {
            None => (None, rest),
            Some((net, port)) => {
                let bare = net.strip_prefix('[').and_then(|net| net.strip_suffix(']'));
                let net = bare.unwrap_or(net);
                let address = || net.parse().ok().map(Cidr::host);
                let net = net.parse().ok().or_else(address)?;
                // The colons of an IPv6 network end at the bracket.
                (net.is_v4() == bare.is_none()).then_some((Some(net), port))?
            }
        };
        Some(Self { udp, port: u16::from_text(port)?, net })
    }
}

impl fmt::Display for Failsafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.udp { "udp:" } else { "tcp:" })?;
        match self.net {
            None => {}
            Some(net) if net.is_v4() => write!(f, "{net}:")?,
            Some(net) => write!(f, "[{net}]:")?,
        }
        write!(f, "{}", self.port)
    }
}

impl SettingValue for Vec<Failsafe> {
    const EXPECTED: &'static str =
        "write up to 1000 ports with commas between, such as tcp:22,udp:68,tcp:192.0.2.0/24:22, or none";

    fn from_text(text: &str) -> Option<Self> {
        if is_none(text) {
            return Some(Self::new());
        }
        let all = text.split(',').map(|part| Failsafe::from_text(part.trim()));
        all.collect::<Option<Self>>().filter(|all| all.len() <= FAILSAFES_MAX)
    }

    fn to_text(&self) -> String {
        if self.is_empty() {
            return "none".to_owned();
        }
        self.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}
