//! What an agent reports in Calico's form.

use std::time::Duration;

use serde_json::{Number, Value};

use super::ValueError;
use super::json::{Extra, Fields, Writer};

/// The value of `felix/v1/host/<h>/status` and `last_reported_status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentStatus {
    /// When it was written: ISO 8601, UTC.
    pub time: String,
    /// How long the agent has run.
    pub uptime: Duration,
    /// The first report after a start.
    pub first_update: bool,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl AgentStatus {
    /// Reads a value.
    ///
    /// # Errors
    /// When a field is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let expected = "write seconds, 0 or more";
        let uptime = match fields.take("uptime") {
            None => Duration::ZERO,
            Some(value) => value
                .as_f64()
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .ok_or_else(|| ValueError::json("uptime", &value, expected))?,
        };
        Ok(Self {
            time: fields.text("time")?.unwrap_or_default(),
            uptime,
            first_update: fields.flag("first_update")?,
            extra: fields.rest(),
        })
    }

    /// The newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("time", self.time.clone());
        writer.put("uptime", Number::from_f64(self.uptime.as_secs_f64()).map_or(Value::Null, Value::Number));
        writer.put("first_update", self.first_update);
        writer.bytes(&self.extra)
    }
}

/// The value of an endpoint's status key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointStatus {
    /// How it is.
    pub state: EndpointState,
    /// Fields that are not named here.
    pub extra: Extra,
}

/// How an endpoint is; of IPv4 and IPv6 results the greater wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointState {
    /// Active, and its interface is up.
    Up,
    /// Neither up nor an error.
    Down,
    /// Its interface could not be configured, or none matches.
    Error,
}

impl EndpointState {
    /// As stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Error => "error",
        }
    }
}

impl EndpointStatus {
    /// A status without other fields.
    #[must_use]
    pub fn new(state: EndpointState) -> Self {
        Self { state, extra: Extra::default() }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// When `status` is not up, down or error.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let expected = "write \"up\", \"down\" or \"error\"";
        let mut fields = Fields::parse(bytes)?;
        let state = match fields.text("status")?.as_deref() {
            Some("up") => EndpointState::Up,
            Some("down") => EndpointState::Down,
            Some("error") => EndpointState::Error,
            Some(other) => return Err(ValueError::new("status", format_args!("`{other}`"), expected)),
            None => return Err(ValueError::missing("status", expected)),
        };
        Ok(Self { state, extra: fields.rest() })
    }

    /// The newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("status", self.state.as_str());
        writer.bytes(&self.extra)
    }
}
