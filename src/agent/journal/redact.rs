//! Redaction: replaces secrets in inputs before they are recorded.
//!
//! Equal secrets get equal tags, so that a changed key stays a visible change. A tag reveals nothing without
//! the key of this run.

use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tortie_config::secrets;

use crate::agent::core::input::Input;
use tortie_store::{Change, FeedEvent, KeyValue};

/// Leading part of a tag.
const TAG: &str = "redacted-";
/// Longest TCP MD5 key in octets (RFC 2385, section 4.5). The tag of a longer key must be too long, too.
const LONGEST: usize = 80;

/// Replaces secrets by tags; the key is random and never leaves this process.
pub(super) struct Redactor {
    key: [u8; 32],
}

impl Redactor {
    pub(super) fn new() -> Self {
        Self { key: rand::random() }
    }

    /// Returns the input without secrets.
    pub(super) fn input(&self, input: Input) -> Input {
        match input {
            Input::Feed(event) => Input::Feed(self.event(event)),
            other => other,
        }
    }

    fn event(&self, event: FeedEvent) -> FeedEvent {
        match event {
            FeedEvent::Snapshot { mut snapshot, generation } => {
                let secrets = self.secrets_of(&snapshot.entries);
                if !secrets.is_empty() {
                    replace(&mut Arc::make_mut(&mut snapshot).entries, secrets);
                }
                FeedEvent::Snapshot { snapshot, generation }
            }
            FeedEvent::Cached(mut cached) => {
                let secrets = self.secrets_of(&cached.snapshot.entries);
                let unreadable = self.secrets_of(&cached.unreadable);
                if !secrets.is_empty() || !unreadable.is_empty() {
                    let cached = Arc::make_mut(&mut cached);
                    replace(&mut cached.snapshot.entries, secrets);
                    replace(&mut cached.unreadable, unreadable);
                }
                FeedEvent::Cached(cached)
            }
            FeedEvent::Added { prefixes, mut snapshot } => {
                let secrets = self.secrets_of(&snapshot.entries);
                replace(&mut snapshot.entries, secrets);
                FeedEvent::Added { prefixes, snapshot }
            }
            FeedEvent::Delta(mut delta) => {
                for change in &mut delta.changes {
                    if let Change::Put(kv) = change
                        && let Some(value) = self.redacted(&kv.value)
                    {
                        kv.value = value;
                    }
                }
                FeedEvent::Delta(delta)
            }
            other => other,
        }
    }

    /// Returns the redacted values with their positions, only of entries with secrets: most stores have none,
    /// and then nothing is copied.
    fn secrets_of(&self, entries: &[KeyValue]) -> Vec<(usize, Vec<u8>)> {
        entries.iter().enumerate().filter_map(|(at, kv)| Some((at, self.redacted(&kv.value)?))).collect()
    }

    /// Returns the value without secrets; `None` if it has none.
    fn redacted(&self, value: &[u8]) -> Option<Vec<u8>> {
        let text = &*String::from_utf8_lossy(value);
        if !secrets::names_secret(text) {
            return None;
        }
        match serde_json::from_slice::<Value>(value) {
            Ok(mut json) => {
                let found = secrets::replace(&mut json, &mut |secret| self.tag(secret));
                found.then(|| json.to_string().into_bytes())
            }
            // Without valid JSON the end of the secret is unknown, so the whole value is replaced.
            Err(_) if secrets::is_secret(text) => Some(self.tag_of(text).into_bytes()),
            Err(_) => None,
        }
    }

    fn tag(&self, secret: &mut Value) {
        match secret {
            Value::String(text) if !text.is_empty() => *text = self.tag_of(text),
            Value::Number(number) => *secret = self.digest(&number.to_string()).into(),
            Value::Array(list) => list.iter_mut().for_each(|item| self.tag(item)),
            Value::Object(map) => map.values_mut().for_each(|member| self.tag(member)),
            _ => {}
        }
    }

    fn tag_of(&self, secret: &str) -> String {
        let tag = format!("{TAG}{:016x}", self.digest(secret));
        let missing = if secret.len() > LONGEST { secret.len().saturating_sub(tag.len()) } else { 0 };
        tag + &"-".repeat(missing)
    }

    fn digest(&self, secret: &str) -> u64 {
        let hash = Sha256::new().chain_update(self.key).chain_update(secret).finalize();
        hash.iter().take(8).fold(0, |sum, octet| sum << 8 | u64::from(*octet))
    }
}

/// Replaces the values at these positions.
fn replace(entries: &mut [KeyValue], values: Vec<(usize, Vec<u8>)>) {
    for (at, value) in values {
        if let Some(kv) = entries.get_mut(at) {
            kv.value = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(redactor: &Redactor, value: &str) -> String {
        let redacted = redactor.redacted(value.as_bytes());
        redacted.map_or_else(|| value.to_owned(), |octets| String::from_utf8(octets).unwrap())
    }

    #[test]
    fn equal_secrets_have_equal_tags_and_other_values_stay() {
        let redactor = Redactor::new();
        let one = shown(&redactor, r#"{"ip":"192.0.2.1","password":"hunter2"}"#);
        assert!(one.contains("192.0.2.1") && one.contains(TAG) && !one.contains("hunter2"), "{one}");
        assert_eq!(one, shown(&redactor, r#"{"ip":"192.0.2.1","password":"hunter2"}"#));
        assert_ne!(one, shown(&redactor, r#"{"ip":"192.0.2.1","password":"hunter3"}"#));
        assert_ne!(one, shown(&Redactor::new(), r#"{"ip":"192.0.2.1","password":"hunter2"}"#));
        for value in [
            r#"{"password_file":"tor-a"}"#,
            r#"{"password":null,"ip":"::1"}"#,
            "64512",
            "a_file",
            r#"{"a":1}"#,
        ] {
            assert_eq!(shown(&redactor, value), value);
        }
        let nested = shown(&redactor, r#"{"a":[{"token":{"x":"geheim"}},{"client-secret":77}]}"#);
        assert!(!nested.contains("geheim") && !nested.contains(":77}"), "{nested}");
        assert!(!shown(&redactor, r#"{"password": "broken"#).contains("broken"));
        // Not even valid text: the whole value is replaced.
        let octets = redactor.redacted(b"password=hunter2\xff").unwrap();
        assert!(octets.starts_with(TAG.as_bytes()) && !octets.windows(7).any(|part| part == b"hunter2"));
        let long = shown(&redactor, &format!(r#"{{"password":"{}"}}"#, "x".repeat(90)));
        assert!(long.len() > 90 && !long.contains("xx"), "a key that is too long stays too long: {long}");
    }
}
