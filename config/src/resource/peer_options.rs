//! Options of a peer: BFD, role, ADD-PATH and others. Secrets are in [`peer_auth`](super::peer_auth).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

use super::json::{Extra, Fields, Writer};
use super::{ValueError, duration};

/// Parameters of Bidirectional Forwarding Detection (RFC 5880).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bfd {
    /// Desired interval of control packets, 10 ms to 60 s.
    pub interval: Duration,
    /// Detection multiplier: number of missed packets after which the session is down, 1 to 255.
    pub multiplier: u8,
    /// Multihop (RFC 5883) or single-hop (RFC 5881) BFD. `None` uses single-hop for on-link eBGP peers and
    /// multihop for all others, as BIRD does by default (FRR uses single-hop for on-link iBGP peers too).
    pub multihop: Option<bool>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl Default for Bfd {
    /// Returns an interval of 300 ms with multiplier 3.
    fn default() -> Self {
        Self { interval: Duration::from_millis(300), multiplier: 3, multihop: None, extra: Extra::default() }
    }
}

impl Bfd {
    /// Parses `true`, `false` or `{"interval": "300ms", "multiplier": 3, "multihop": false}`.
    pub(super) fn take(fields: &mut Fields) -> Result<Option<Self>, ValueError> {
        match fields.take("bfd") {
            None | Some(Value::Bool(false)) => Ok(None),
            Some(Value::Bool(true)) => Ok(Some(Self::default())),
            Some(value @ Value::Object(_)) => {
                Self::parse(value).map(Some).map_err(|error| error.within("bfd"))
            }
            Some(other) => {
                let expected = "write true, false or {\"interval\": \"300ms\", \"multiplier\": 3}";
                Err(ValueError::json("bfd", &other, expected))
            }
        }
    }

    fn parse(value: Value) -> Result<Self, ValueError> {
        let default = Self::default();
        let mut fields = Fields::of(value)?;
        let (unit, min, max) = (Duration::from_micros(1), Duration::from_millis(10), Duration::from_secs(60));
        Ok(Self {
            interval: duration::field(&mut fields, "interval", unit, min, max)?.unwrap_or(default.interval),
            multiplier: fields.number("multiplier", 1, 255)?.unwrap_or(default.multiplier),
            multihop: fields.bool("multihop")?,
            extra: fields.rest(),
        })
    }

    pub(super) fn json(&self) -> Value {
        if *self == Self::default() {
            return Value::Bool(true);
        }
        let mut writer = Writer::default();
        writer.put("interval", duration::text(self.interval));
        writer.put("multiplier", self.multiplier);
        writer.put_some("multihop", self.multihop);
        writer.object(&self.extra)
    }
}

/// Limits on the number of prefixes per address family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MaxPrefixes {
    /// Maximum number of accepted prefixes.
    pub limit: Option<u32>,
    /// Percentage of `limit` at which a warning is given; 0 for never, `None` for the speaker's default.
    pub warn: Option<u8>,
    /// Time without session after the peer exceeded `limit`; `None` for the speaker's default.
    pub restart: Option<Duration>,
    /// Maximum number of prefixes announced to the peer.
    pub out: Option<u32>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl MaxPrefixes {
    /// Parses a number, which is the limit, or `{"limit": 1000, "warn": 75, "restart": "60s", "out": 50}`.
    pub(super) fn take(fields: &mut Fields) -> Result<Option<Self>, ValueError> {
        match fields.take("max_prefixes") {
            None => Ok(None),
            Some(value @ Value::Object(_)) => {
                Self::parse(value).map(Some).map_err(|error| error.within("max_prefixes"))
            }
            Some(other) => {
                let limit = other.as_u64().or_else(|| other.as_str()?.parse().ok());
                let limit = limit.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
                match limit {
                    Some(limit) => Ok(Some(Self { limit: Some(limit), ..Self::default() })),
                    None => Err(ValueError::json(
                        "max_prefixes",
                        &other,
                        "write a number from 1 to 4294967295, or {\"limit\": 1000, \"warn\": 75, \"restart\": \"60s\"}",
                    )),
                }
            }
        }
    }

    fn parse(value: Value) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value)?;
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86400));
        Ok(Self {
            limit: fields.number("limit", 1, u64::from(u32::MAX))?,
            warn: fields.number("warn", 0, 100)?,
            restart: duration::field(&mut fields, "restart", second, second, day)?,
            out: fields.number("out", 1, u64::from(u32::MAX))?,
            extra: fields.rest(),
        })
    }

    pub(super) fn json(&self) -> Value {
        if let (Some(limit), true) = (self.limit, Self { limit: None, ..self.clone() } == Self::default()) {
            return Value::from(limit);
        }
        let mut writer = Writer::default();
        writer.put_some("limit", self.limit);
        writer.put_some("warn", self.warn);
        writer.put_some("restart", self.restart.map(duration::text));
        writer.put_some("out", self.out);
        writer.object(&self.extra)
    }
}

/// Several paths per prefix (RFC 7911).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddPath {
    /// Receive several paths per prefix from the peer.
    pub receive: bool,
    /// Maximum number of paths per prefix sent to the peer, the best one first; 0 to not offer sending.
    pub send: u8,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl AddPath {
    /// Maximum value of [`send`](Self::send).
    pub const MOST: u8 = 8;
    /// Default number of paths to send per prefix: the best one and the next.
    pub const USUAL: u8 = 2;

    const EXPECTED: &'static str = "write \"receive\", \"send\" or \"both\", how many paths to send from 1 to 8, or {\"receive\": true, \"send\": 4}";

    /// Creates an option with these values.
    #[must_use]
    pub fn new(receive: bool, send: u8) -> Self {
        Self { receive, send, extra: Extra::default() }
    }

    /// Returns the option of the other end: it sends if this one receives, the same number of paths, and
    /// receives if this one sends.
    #[must_use]
    pub fn opposite(&self) -> Self {
        Self::new(self.send > 0, if self.receive { self.send.max(Self::USUAL) } else { 0 })
    }

    /// Parses `"receive"`, `"send"`, `"both"` (or `true`), the number of paths to send while also receiving
    /// several, or `{"receive": true, "send": 4}`, where `"send": true` means the default number.
    pub(super) fn take(fields: &mut Fields) -> Result<Option<Self>, ValueError> {
        let Some(value) = fields.take("add_path") else { return Ok(None) };
        let read = match &value {
            Value::Bool(yes) => Self::new(*yes, if *yes { Self::USUAL } else { 0 }),
            Value::String(text) if text.is_empty() => return Ok(None),
            Value::String(text) if text == "receive" => Self::new(true, 0),
            Value::String(text) if text == "send" => Self::new(false, Self::USUAL),
            Value::String(text) if text == "both" => Self::new(true, Self::USUAL),
            Value::Object(_) => Self::parse(value).map_err(|error| error.within("add_path"))?,
            other => {
                let paths = other.as_u64().or_else(|| other.as_str()?.parse().ok());
                let paths = paths.and_then(|n| u8::try_from(n).ok()).filter(|n| (1..=Self::MOST).contains(n));
                match paths {
                    Some(paths) => Self::new(true, paths),
                    None => return Err(ValueError::json("add_path", other, Self::EXPECTED)),
                }
            }
        };
        Ok(Some(read).filter(|read| *read != Self::default()))
    }

    fn parse(value: Value) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value)?;
        let receive = fields.flag("receive")?;
        let send = match fields.take("send") {
            None | Some(Value::Bool(false)) => 0,
            Some(Value::Bool(true)) => Self::USUAL,
            Some(other) => {
                let paths = other.as_u64().or_else(|| other.as_str()?.parse().ok());
                let paths = paths.and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= Self::MOST);
                paths.ok_or_else(|| {
                    ValueError::json("send", &other, "write true, false or a number from 0 to 8")
                })?
            }
        };
        Ok(Self { receive, send, extra: fields.rest() })
    }

    pub(super) fn json(&self) -> Value {
        if self.extra.is_empty() {
            match (self.receive, self.send) {
                (true, 0) => return "receive".into(),
                (false, Self::USUAL) => return "send".into(),
                (true, Self::USUAL) => return "both".into(),
                _ => {}
            }
        }
        let mut writer = Writer::default();
        writer.put_some("receive", self.receive.then_some(true));
        writer.put_some("send", Some(self.send).filter(|paths| *paths > 0));
        writer.object(&self.extra)
    }
}

/// Maximum length of a shutdown communication, in octets (RFC 9003, section 2).
const SHUTDOWN_TEXT: usize = 255;

/// Parses `shutdown`: `true`, `false`, or a text for the peer's operators.
pub(super) fn take_shutdown(fields: &mut Fields) -> Result<Option<String>, ValueError> {
    match fields.take("shutdown") {
        None | Some(Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(String::new())),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        // A boolean in quotes is not meant as a text.
        Some(Value::String(text)) if text.len() <= SHUTDOWN_TEXT && text != "true" && text != "false" => {
            Ok(Some(text))
        }
        Some(other) => {
            let expected = "write true, false or a text of at most 255 octets for the peer's operators";
            Err(ValueError::json("shutdown", &other, expected))
        }
    }
}

pub(super) fn shutdown_json(text: &str) -> Value {
    if text.is_empty() { Value::Bool(true) } else { text.into() }
}

/// Declares an enum that is a word in JSON.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident: $expected:literal { $($(#[$vdoc:meta])* $variant:ident = $word:literal $(| $also:literal)*,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            pub(super) const EXPECTED: &'static str = $expected;

            /// Returns the word as stored.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                match text {
                    $($word $(| $also)* => Ok(Self::$variant),)+
                    _ => Err(ValueError::new("", format_args!("`{text}`"), Self::EXPECTED)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(super) use words;

words! {
    /// Next hop of announced routes.
    NextHopMode: "write \"Auto\", \"Self\" or \"Keep\"" {
        /// Own address, except on reflected routes.
        Auto = "Auto",
        /// Always the own address.
        Own = "Self",
        /// Unchanged next hop of the received route.
        Keep = "Keep",
    }
}

words! {
    /// Local role on a session (RFC 9234).
    Role: "write the local role: \"provider\", \"customer\", \"peer\", \"rs-server\" or \"rs-client\"" {
        /// This host provides transit to the peer.
        Provider = "provider",
        /// The peer provides transit to this host.
        Customer = "customer",
        /// Lateral peering.
        Peer = "peer",
        /// This host is a route server.
        RsServer = "rs-server" | "rs_server" | "rs",
        /// The peer is a route server.
        RsClient = "rs-client" | "rs_client",
    }
}

impl Role {
    /// Returns the role of the other end (RFC 9234, section 4.2, table 2).
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Self::Provider => Self::Customer,
            Self::Customer => Self::Provider,
            Self::Peer => Self::Peer,
            Self::RsServer => Self::RsClient,
            Self::RsClient => Self::RsServer,
        }
    }
}

/// Local address of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SourceAddr {
    /// BGP address of the node.
    #[default]
    UseNodeIp,
    /// Address chosen by the kernel.
    None,
    /// This address.
    Addr(IpAddr),
}

impl SourceAddr {
    pub(super) const EXPECTED: &'static str = "write \"UseNodeIP\", \"None\" or a local address";
}

impl FromStr for SourceAddr {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "UseNodeIP" => Ok(Self::UseNodeIp),
            "None" => Ok(Self::None),
            addr => addr
                .parse()
                .map(Self::Addr)
                .map_err(|_| ValueError::new("", format_args!("`{addr}`"), Self::EXPECTED)),
        }
    }
}

impl fmt::Display for SourceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UseNodeIp => f.write_str("UseNodeIP"),
            Self::None => f.write_str("None"),
            Self::Addr(addr) => fmt::Display::fmt(addr, f),
        }
    }
}
