//! Status reports of an agent in Calico's format.

use std::time::Duration;

use serde_json::{Number, Value};

use super::ValueError;
use super::json::{Extra, Fields, Writer};

/// Value of `felix/v1/host/<h>/status` and `last_reported_status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentStatus {
    /// Time of the report in ISO 8601, UTC.
    pub time: String,
    /// Time since the agent started.
    pub uptime: Duration,
    /// True for the first report after a start.
    pub first_update: bool,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl AgentStatus {
    /// Parses a value.
    ///
    /// # Errors
    /// If a field is malformed.
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

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("time", self.time.clone());
        writer.put("uptime", Number::from_f64(self.uptime.as_secs_f64()).map_or(Value::Null, Value::Number));
        writer.put("first_update", self.first_update);
        writer.bytes(&self.extra)
    }
}

/// Value of an endpoint's status key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointStatus {
    /// State of the endpoint.
    pub state: EndpointState,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

/// State of an endpoint; of the results for IPv4 and IPv6 the greater one is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointState {
    /// The endpoint is active and its interface is up.
    Up,
    /// Neither up nor in error.
    Down,
    /// The interface could not be configured, or no interface matches.
    Error,
}

impl EndpointState {
    /// Returns the state as stored.
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
    /// Creates a status without other fields.
    #[must_use]
    pub fn new(state: EndpointState) -> Self {
        Self { state, extra: Extra::default() }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// If `status` is not up, down or error.
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

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("status", self.state.as_str());
        writer.bytes(&self.extra)
    }
}
