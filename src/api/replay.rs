//! The answer of `tortie replay`.

use serde::{Deserialize, Serialize};

use crate::api::explain::Why;
use crate::api::problem::Problem;

/// A journal that was run again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// [`API_VERSION`](crate::api::status::API_VERSION).
    pub api_version: String,
    /// `Replay`.
    pub kind: String,
    /// The host whose agent recorded.
    pub node: String,
    /// Its version.
    pub recorded_by: String,
    /// The version that ran it again.
    pub run_by: String,
    /// The first input, or the checkpoint before it, RFC 3339.
    pub from: String,
    /// The last input that was run, RFC 3339.
    pub to: String,
    /// The journal begins with a checkpoint, and not with the start of the agent.
    pub from_checkpoint: bool,
    /// Inputs that were run.
    pub inputs: usize,
    /// Inputs that were lost before the journal begins.
    pub lost: u64,
    /// Inputs on which this version decides otherwise.
    pub different: usize,
    /// Inputs on which it decides the same and words it otherwise.
    pub worded_differently: usize,
    /// The first inputs on which it decides otherwise.
    pub differences: Vec<Difference>,
    /// What the core wants after the last input, a line each: peers, own routes, view, gates.
    pub intents: Vec<String>,
    /// What it decided on the last input.
    pub decisions: Vec<String>,
    /// The problems that it knows of then.
    pub problems: Vec<Problem>,
    /// The answer to `--why`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
}

/// An input on which two versions differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Which input, from 1.
    pub input: usize,
    /// When it came, RFC 3339.
    pub time: String,
    /// What it was.
    pub subject: String,
    /// What only the recording has.
    pub recorded: Vec<String>,
    /// What only this version has.
    pub now: Vec<String>,
}
