//! What an agent that observes says of others in `status`.

use serde::{Deserialize, Serialize};

/// What an agent that observes found of others (`--kernel observe`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObserveStatus {
    /// Each BIRD that answered, in words.
    pub bird: Vec<String>,
    /// Each table with chains of Felix, and its sets, in words.
    pub felix: Vec<String>,
    /// How many items compare how.
    pub planes: Vec<ObservedPlane>,
    /// What could not be looked at, and why.
    pub unseen: Vec<String>,
    /// How long the comparison is ago.
    pub compared_seconds: u64,
}

/// One kind of objects in [`ObserveStatus`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedPlane {
    /// `route`, `interface`, `session`, `rule` or `set`.
    pub plane: String,
    /// As Tortie would have them.
    pub equal: usize,
    /// There, and otherwise.
    pub different: usize,
    /// Not there.
    pub missing: usize,
    /// There, and not wanted.
    pub extra: usize,
    /// Cannot be known: never counted as equal.
    pub not_judged: usize,
}
