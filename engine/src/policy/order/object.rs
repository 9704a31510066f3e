//! Object of Calico 3 that a policy's name in the model stands for.

use std::fmt;

/// A policy of a Calico 3 store. Its name in the model is that of the object's key, for a policy of a
/// namespace with the namespace and a slash before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyObject<'a> {
    /// Namespace; `None` for a GlobalNetworkPolicy.
    pub namespace: Option<&'a str>,
    /// Name in the key of the object.
    pub name: &'a str,
}

impl<'a> PolicyObject<'a> {
    /// Returns the object for a name of the model.
    #[must_use]
    pub fn of(name: &'a str) -> Self {
        match name.split_once('/') {
            Some((namespace, name)) => Self { namespace: Some(namespace), name },
            None => Self { namespace: None, name },
        }
    }

    /// Returns the kind of the object.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.namespace {
            Some(_) => "NetworkPolicy",
            None => "GlobalNetworkPolicy",
        }
    }

    /// Returns the text by which Calico sorts policies of equal order.
    pub(super) fn sort_text(&self) -> String {
        format!("{}/{}/{}", self.name, self.namespace.unwrap_or_default(), self.kind())
    }
}

impl fmt::Display for PolicyObject<'_> {
    /// Formats kind and name, such as `NetworkPolicy web/allow-dns`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self.namespace {
            Some(namespace) => write!(f, " {namespace}/{}", self.name),
            None => write!(f, " {}", self.name),
        }
    }
}
