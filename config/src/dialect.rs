//! Data models that a store may hold.

/// Data model of a store.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// Calico's etcd v1 model, of Calico 1 and 2.
    #[default]
    V1,
    /// Calico 3's objects.
    V3,
}

impl Dialect {
    /// Returns `v1` or `v3`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V3 => "v3",
        }
    }
}
