//! Readiness of the data model, without which plugins write nothing.

use tortie_config::Dialect;
use tortie_config::calico3::write::cluster_information_key;
use tortie_config::calico3::{Object, ObjectKey};
use tortie_config::key::Key;

use super::Writer;

/// Maximum number of characters of a value that an error shows.
const SHOWN: usize = 40;

impl Writer {
    /// Returns the key that says whether the data model is ready.
    #[must_use]
    pub fn ready_key(self) -> String {
        match self.dialect() {
            Dialect::V1 => Key::Ready.to_string(),
            Dialect::V3 => cluster_information_key().to_string(),
        }
    }

    /// Checks the value at that key. A v1 store without it is ready; a Calico 3 cluster that does not say so is
    /// not, as for Calico's own plugins.
    ///
    /// # Errors
    /// The reason, if the data model is not ready.
    pub fn check_ready(self, stored: Option<&[u8]>) -> Result<(), String> {
        match (self.dialect(), stored) {
            (Dialect::V1, None | Some(b"true")) => Ok(()),
            (Dialect::V1, Some(value)) => {
                let value: String = String::from_utf8_lossy(value).chars().take(SHOWN).collect();
                Err(format!("{} is `{value}`, not `true`", Key::Ready))
            }
            (Dialect::V3, None) => {
                let title = cluster_information_key().title();
                Err(format!("there is no {title}, which the first agent of the cluster creates"))
            }
            (Dialect::V3, Some(value)) => ready_object(cluster_information_key(), value),
        }
    }
}

fn ready_object(key: ObjectKey, value: &[u8]) -> Result<(), String> {
    let title = key.title();
    let object = Object::parse(key, value, 0, 0).map_err(|error| format!("{title}: {error}"))?;
    match object.spec.get("datastoreReady") {
        Some(serde_json::Value::Bool(true)) => Ok(()),
        _ => Err(format!("`spec.datastoreReady` of {title} is not true")),
    }
}
