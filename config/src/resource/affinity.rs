//! Block affinities: the claim of a host on a block, and the state of the claim.

use super::json::{Extra, Fields, Writer};
use super::{ValueError, text};

/// Value of an affinity key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Affinity {
    /// State of the claim. Older writers omitted it, which means confirmed.
    pub state: Option<AffinityState>,
    /// True if a writer marked the affinity as gone (Calico 3); `None` if the value does not say.
    pub deleted: Option<bool>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

/// State of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AffinityState {
    /// The claim is visible to other claimants; the block may not exist yet.
    Pending,
    /// The block exists and names the host.
    Confirmed,
    /// The host is giving up the block.
    PendingDeletion,
}

impl AffinityState {
    /// Returns the state as stored.
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
    /// Creates an affinity with this state.
    #[must_use]
    pub fn new(state: AffinityState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// Returns true if the state is confirmed or absent.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        matches!(self.state, None | Some(AffinityState::Confirmed))
    }

    /// Returns true if a writer marked the affinity as gone.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleted == Some(true)
    }

    /// Parses an empty value (Python), `{}` (early Go) or `{"state": ...}` (3.0.7 and later).
    ///
    /// # Errors
    /// If the value has another form.
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
        let deleted = fields.bool("deleted")?;
        Ok(Self { state, deleted, extra: fields.rest() })
    }

    /// Formats the value in its newest form.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put_some("state", self.state.map(AffinityState::as_str));
        writer.put_some("deleted", self.deleted);
        writer.bytes(&self.extra)
    }
}
