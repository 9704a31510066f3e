//! Value of an entry: octets, or a resource whose octets are formatted when they are asked for.
//!
//! Tens of thousands of endpoints are projected at a start. Who follows the entries as resources needs no
//! octets of them, which would be formatted here and parsed there.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::Resource;

/// Value of an entry of the v1 model. It dereferences to its octets.
#[derive(Debug, Clone)]
pub struct EntryValue {
    octets: OnceLock<Vec<u8>>,
    resource: Option<Arc<Resource>>,
}

impl EntryValue {
    /// Creates a value of octets, and the resource that they were parsed to.
    pub(super) fn parsed(octets: Vec<u8>, resource: Resource) -> Self {
        Self { octets: octets.into(), resource: Some(Arc::new(resource)) }
    }

    /// Returns the resource that the octets are parsed to, if it is known already.
    #[must_use]
    pub fn resource(&self) -> Option<&Arc<Resource>> {
        self.resource.as_ref()
    }

    /// Returns the octets.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.octets
            .get_or_init(|| self.resource.as_ref().map(|resource| resource.to_value()).unwrap_or_default())
    }

    /// Returns the octets.
    #[must_use]
    pub fn into_octets(self) -> Vec<u8> {
        let Self { octets, resource } = self;
        octets.into_inner().or_else(|| resource.map(|resource| resource.to_value())).unwrap_or_default()
    }
}

impl Deref for EntryValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl PartialEq for EntryValue {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for EntryValue {}

impl From<Vec<u8>> for EntryValue {
    fn from(octets: Vec<u8>) -> Self {
        Self { octets: octets.into(), resource: None }
    }
}

impl From<String> for EntryValue {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<&str> for EntryValue {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&[u8]> for EntryValue {
    fn from(octets: &[u8]) -> Self {
        octets.to_vec().into()
    }
}

impl From<Resource> for EntryValue {
    fn from(resource: Resource) -> Self {
        Self { octets: OnceLock::new(), resource: Some(Arc::new(resource)) }
    }
}
