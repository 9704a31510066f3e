//! Results of observe mode in `status`: the comparison of BIRD's and Felix's state with Tortie's intent.

use serde::{Deserialize, Serialize};

/// Comparison with BIRD and Felix in observe mode (`--kernel observe`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObserveStatus {
    /// Each BIRD that answered, described in words.
    pub bird: Vec<String>,
    /// Each table with chains of Felix, with its sets, described in words.
    pub felix: Vec<String>,
    /// Counts of the comparison per kind of object.
    pub planes: Vec<ObservedPlane>,
    /// Objects that could not be read, with the error.
    pub unseen: Vec<String>,
    /// Seconds since the comparison.
    pub compared_seconds: u64,
}

/// Counts of one kind of object in [`ObserveStatus`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedPlane {
    /// Kind of object: `route`, `interface`, `session`, `rule` or `set`.
    pub plane: String,
    /// Number of objects equal to Tortie's intent.
    pub equal: usize,
    /// Number of objects that exist but differ from the intent.
    pub different: usize,
    /// Number of objects that the intent has and the host lacks.
    pub missing: usize,
    /// Number of objects that the host has and the intent lacks.
    pub extra: usize,
    /// Number of objects that cannot be compared; they never count as equal.
    pub not_judged: usize,
}
