//! Block affinities: which host owns a block, and how far the claim has got.

use super::json::{Extra, Fields, Writer};
use super::{ValueError, text};

/// The value of an affinity key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Affinity {
    /// How far the claim has got; the older writers left it out, which means confirmed.
    pub state: Option<AffinityState>,
    /// Fields that are not named here.
    pub extra: Extra,
}

/// The steps of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AffinityState {
    /// Announced to other claimants; the block may not exist yet.
    Pending,
    /// The block exists and names the host.
    Confirmed,
    /// Being given up.
    PendingDeletion,
}

impl AffinityState {
    /// As stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Confirmed => "confirmed",
            Self::PendingDeletion => "pendingDeletion",
        }
    }
}

impl Affinity {
    /// An affinity in this state.
    #[must_use]
    pub fn new(state: AffinityState) -> Self {
        Self { state: Some(state), extra: Extra::default() }
    }

    /// Confirmed or without a state.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        matches!(self.state, None | Some(AffinityState::Confirmed))
    }

    /// Reads nothing (Python), `{}` (early Go) or `{"state": ...}` (3.0.7 and later).
    ///
    /// # Errors
    /// When it is none of these.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        if matches!(text::text(bytes)?, "" | "null" | "\"\"") {
            return Ok(Self::default());
        }
        let mut fields = Fields::parse(bytes)?;
        let state = match fields.text("state")?.as_deref() {
            None | Some("") => None,
            Some("pending") => Some(AffinityState::Pending),
            Some("confirmed") => Some(AffinityState::Confirmed),
            Some("pendingDeletion") => Some(AffinityState::PendingDeletion),
            Some(other) => {
                let expected = "write \"pending\", \"confirmed\" or \"pendingDeletion\"";
                return Err(ValueError::new("state", format_args!("`{other}`"), expected));
            }
        };
        Ok(Self { state, extra: fields.rest() })
    }

    /// The newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put_some("state", self.state.map(AffinityState::as_str));
        writer.bytes(&self.extra)
    }
}
