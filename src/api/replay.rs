//! JSON of the answer of `tortie replay`.

use serde::{Deserialize, Serialize};

use crate::api::explain::Why;
use crate::api::problem::Problem;

/// Result of replaying a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// Version of the API, see [`API_VERSION`](crate::api::status::API_VERSION).
    pub api_version: String,
    /// Kind of the answer: `Replay`.
    pub kind: String,
    /// Host whose agent recorded the journal.
    pub node: String,
    /// Version of the agent that recorded the journal.
    pub recorded_by: String,
    /// Version that replayed the journal.
    pub run_by: String,
    /// Time of the first input, or of the checkpoint before it, RFC 3339.
    pub from: String,
    /// Time of the last replayed input, RFC 3339.
    pub to: String,
    /// True if the journal begins with a checkpoint instead of the start of the agent.
    pub from_checkpoint: bool,
    /// Number of replayed inputs.
    pub inputs: usize,
    /// Number of inputs that were discarded before the journal begins.
    pub lost: u64,
    /// Number of inputs on which this version decides differently.
    pub different: usize,
    /// Number of inputs on which this version decides the same but with other texts.
    pub worded_differently: usize,
    /// First inputs on which this version decides differently.
    pub differences: Vec<Difference>,
    /// Intent of the core after the last input, one line each: peers, own routes, view, gates.
    pub intents: Vec<String>,
    /// Decisions on the last input.
    pub decisions: Vec<String>,
    /// Problems after the last input.
    pub problems: Vec<Problem>,
    /// Answer to `--why`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
}

/// An input on which two versions decide differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Number of the input, from 1.
    pub input: usize,
    /// Time of the input, RFC 3339.
    pub time: String,
    /// Description of the input.
    pub subject: String,
    /// Decisions that only the recording has.
    pub recorded: Vec<String>,
    /// Decisions that only this version has.
    pub now: Vec<String>,
}
