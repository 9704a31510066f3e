//! The parts of a peer's value: BFD, role, add-path and the like; secrets are in
//! [`peer_auth`](super::peer_auth).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

use super::json::{Extra, Fields, Writer};
use super::{ValueError, duration};

/// Bidirectional forwarding detection (RFC 5880).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bfd {
    /// Wanted interval of control packets, 10 ms to 60 s.
    pub interval: Duration,
    /// Missed packets until the session is down, 1 to 255.
    pub multiplier: u8,
    /// Several hops (RFC 5883) or one (RFC 5881). `None`: one to an eBGP peer that is on-link, several to all
    /// others (what BIRD does by itself; FRR takes on-link iBGP peers for one hop).
    pub multihop: Option<bool>,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl Default for Bfd {
    /// 3 x 300 ms.
    fn default() -> Self {
        Self { interval: Duration::from_millis(300), multiplier: 3, multihop: None, extra: Extra::default() }
    }
}

impl Bfd {
    /// `true`, `false` or `{"interval": "300ms", "multiplier": 3, "multihop": false}`.
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

/// Limits of prefixes in a family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MaxPrefixes {
    /// Most prefixes accepted.
    pub limit: Option<u32>,
    /// From this share of `limit` on, in percent, a warning is given; 0: never. `None`: the speaker's
    /// default.
    pub warn: Option<u8>,
    /// How long the peer is left alone after it went over `limit`. `None`: the speaker's default.
    pub restart: Option<Duration>,
    /// Most prefixes announced to the peer.
    pub out: Option<u32>,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl MaxPrefixes {
    /// A number is the limit; else `{"limit": 1000, "warn": 75, "restart": "60s", "out": 50}`.
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
    /// Take several from the peer.
    pub receive: bool,
    /// Paths of a prefix to send to the peer, the best one first; 0: it is not offered several.
    pub send: u8,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl AddPath {
    /// Most paths of a prefix that are sent.
    pub const MOST: u8 = 8;
    /// Paths of a prefix that are sent where nobody says how many: the best one and the next.
    pub const USUAL: u8 = 2;

    const EXPECTED: &'static str = "write \"receive\", \"send\" or \"both\", how many paths to send from 1 to 8, or {\"receive\": true, \"send\": 4}";

    /// Take several and send so many.
    #[must_use]
    pub fn new(receive: bool, send: u8) -> Self {
        Self { receive, send, extra: Extra::default() }
    }

    /// What the other end has to do for this: send where we receive, as many as we do, and receive where we
    /// send.
    #[must_use]
    pub fn opposite(&self) -> Self {
        Self::new(self.send > 0, if self.receive { self.send.max(Self::USUAL) } else { 0 })
    }

    /// `"receive"`, `"send"`, `"both"` (also `true`), the number of paths to send beside taking several, or
    /// `{"receive": true, "send": 4}`, where `"send": true` is the usual number.
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

/// Longest shutdown communication, in octets (RFC 9003 2).
const SHUTDOWN_TEXT: usize = 255;

/// `shutdown`: `true`, `false`, or a text for the peer's operators.
pub(super) fn take_shutdown(fields: &mut Fields) -> Result<Option<String>, ValueError> {
    match fields.take("shutdown") {
        None | Some(Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(String::new())),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        // Whoever puts a switch in quotes does not mean it as a text.
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

/// Declares an enum that stands as a word in JSON.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident: $expected:literal { $($(#[$vdoc:meta])* $variant:ident = $word:literal $(| $also:literal)*,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            pub(super) const EXPECTED: &'static str = $expected;

            /// As stored.
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
                    _ => Err(ValueError::new("", format_args!("`{text}`"), $expected)),
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
    /// Where the next hop of announced routes comes from.
    NextHopMode: "write \"Auto\", \"Self\" or \"Keep\"" {
        /// Self, except on reflected routes.
        Auto = "Auto",
        /// Always self.
        Own = "Self",
        /// What was received.
        Keep = "Keep",
    }
}

words! {
    /// The local role on a session (RFC 9234).
    Role: "write the local role: \"provider\", \"customer\", \"peer\", \"rs-server\" or \"rs-client\"" {
        /// We provide transit to the peer.
        Provider = "provider",
        /// The peer provides transit to us.
        Customer = "customer",
        /// Lateral peering.
        Peer = "peer",
        /// We are a route server.
        RsServer = "rs-server" | "rs_server" | "rs",
        /// The peer is a route server.
        RsClient = "rs-client" | "rs_client",
    }
}

impl Role {
    /// The role of the other end (RFC 9234 4.2, table 2).
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

/// The address that a session comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SourceAddr {
    /// The node's address.
    #[default]
    UseNodeIp,
    /// The kernel chooses.
    None,
    /// This one.
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
