//! Removes secrets from data that leaves this host: by names of members, by assignments in lines, and by
//! known values. It does no I/O.

use tortie_config::secrets::{self, is_secret};

/// Replacement for a secret.
const HIDDEN: &str = "***";
/// Minimum length of secrets that are searched in texts; shorter ones are parts of ordinary words, and are
/// only redacted by name.
const SHORTEST: usize = 4;

/// Returns a store value with `***` for every secret member. Text that is not JSON is unchanged, unless it
/// names a secret: then the extent of the secret is unknown, and all of the text is replaced.
pub(in crate::cli) fn value(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).into_owned();
    match serde_json::from_slice::<serde_json::Value>(bytes) {
        Ok(mut json) => {
            if hide(&mut json, &mut |_| ()) {
                json.to_string()
            } else {
                text
            }
        }
        Err(_) if is_secret(&text) => HIDDEN.to_owned(),
        Err(_) => text,
    }
}

/// True if [`value`] redacted this value: a secret member is `***`.
pub(in crate::cli) fn is_redacted(bytes: &[u8]) -> bool {
    let Ok(mut json) = serde_json::from_slice::<serde_json::Value>(bytes) else {
        return bytes == HIDDEN.as_bytes();
    };
    let mut found = false;
    hide(&mut json, &mut |secret| found |= secret == HIDDEN);
    found
}

/// Passes every text and number in a value to `found`, at any depth.
fn scalars(value: &serde_json::Value, found: &mut impl FnMut(&str)) {
    use serde_json::Value;
    match value {
        Value::String(text) => found(text),
        Value::Array(list) => list.iter().for_each(|item| scalars(item, found)),
        Value::Object(map) => map.values().for_each(|member| scalars(member, found)),
        other => found(&other.to_string()),
    }
}

/// Replaces the secrets in a value, and passes each to `found`; true if there were any.
fn hide(value: &mut serde_json::Value, found: &mut impl FnMut(&str)) -> bool {
    secrets::replace(value, &mut |member| {
        scalars(member, found);
        *member = serde_json::Value::String(HIDDEN.to_owned());
    })
}

/// Knows the secrets of this host and removes them from texts.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    /// Known secrets, the longest first, so that no secret is replaced only in part.
    known: Vec<String>,
}

impl Redactor {
    /// Adds a secret, also in its JSON-escaped form.
    pub(super) fn learn(&mut self, secret: &str) {
        let secret = secret.trim();
        if secret.len() < SHORTEST {
            return;
        }
        let escaped = serde_json::Value::String(secret.to_owned()).to_string();
        let escaped = escaped.trim_matches('"').to_owned();
        for form in [secret.to_owned(), escaped] {
            if !self.known.contains(&form) {
                self.known.push(form);
            }
        }
        self.known.sort_by_key(|known| std::cmp::Reverse(known.len()));
    }

    /// Adds every secret of a store value.
    pub(super) fn learn_from(&mut self, value: &[u8]) {
        if let Ok(mut json) = serde_json::from_slice::<serde_json::Value>(value) {
            let mut found = Vec::new();
            hide(&mut json, &mut |secret| found.push(secret.to_owned()));
            found.iter().for_each(|secret| self.learn(secret));
        }
    }

    /// Returns the text without secrets.
    pub(super) fn clean(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut in_key = false;
        for line in text.split_inclusive('\n') {
            // A private key in PEM format (RFC 7468).
            let begins = line.contains("-----BEGIN") && line.contains("PRIVATE KEY-----");
            if begins {
                in_key = true;
                out.push_str("*** (a private key)\n");
            }
            if in_key {
                in_key = !line.contains("-----END");
                continue;
            }
            out.push_str(&addresses(&assignments(line)));
        }
        self.hide(out)
    }

    /// Replaces only known secrets in the text.
    pub(super) fn hide(&self, text: String) -> String {
        self.known.iter().fold(text, |text, secret| text.replace(secret.as_str(), HIDDEN))
    }

    /// Redacts a journal of one JSON document per line, in string values only: a secret may equal the name of
    /// a member, and replacing that name would make the line unreadable.
    pub(super) fn hide_in_journal(&self, text: &str) -> String {
        text.split_inclusive('\n')
            .map(|line| match serde_json::from_str::<serde_json::Value>(line) {
                Ok(mut entry) if self.known.iter().any(|secret| line.contains(secret.as_str())) => {
                    self.hide_in_texts(&mut entry);
                    format!("{entry}\n")
                }
                Ok(_) => line.to_owned(),
                Err(_) => self.hide(line.to_owned()),
            })
            .collect()
    }

    fn hide_in_texts(&self, value: &mut serde_json::Value) {
        use serde_json::Value;
        match value {
            Value::String(text) => *text = self.hide(std::mem::take(text)),
            Value::Array(list) => list.iter_mut().for_each(|item| self.hide_in_texts(item)),
            Value::Object(map) => map.values_mut().for_each(|member| self.hide_in_texts(member)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Redacts `name=value` and `name: value` if the name is that of a secret, as in logs, environments and
/// settings.
fn assignments(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['=', ':']) {
        let (before, after) = rest.split_at(at);
        let is_part = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-');
        let unquoted = before.trim_end_matches(['"', '\'', ' ']);
        let name = unquoted.rsplit(is_part).next().unwrap_or_default();
        let mut chars = after.chars();
        let sign = chars.next().unwrap_or('=');
        out.push_str(before);
        out.push(sign);
        rest = chars.as_str();
        if !is_secret(name) {
            continue;
        }
        let lead: String = rest.chars().take_while(|c| matches!(c, ' ' | '\t')).collect();
        let value = rest.get(lead.len()..).unwrap_or_default();
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
        let body = value.get(quote.map_or(0, char::len_utf8)..).unwrap_or_default();
        let ends = |c: char| match quote {
            Some(quote) => c == quote || c == '\n',
            None => c.is_whitespace() || matches!(c, ',' | ';' | '}' | ')'),
        };
        let len = body.find(ends).unwrap_or(body.len());
        out.push_str(&lead);
        out.extend(quote);
        if len > 0 {
            out.push_str(HIDDEN);
        }
        rest = body.get(len..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Redacts the password in `scheme://user:password@host` (RFC 3986 3.2.1).
fn addresses(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '<'))
            .unwrap_or(after.len());
        let (authority, more) = after.split_at(end);
        match authority.rsplit_once('@').and_then(|(who, host)| Some((who.split_once(':')?.0, host))) {
            Some((user, host)) => out.extend([user, ":", HIDDEN, "@", host]),
            None => out.push_str(authority),
        }
        rest = more;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_hidden_by_their_names_and_nothing_else_changes() {
        for (given, wanted) in [
            (r#"{"ip":"192.0.2.1","password":"s3cret"}"#, r#"{"ip":"192.0.2.1","password":"***"}"#),
            (r#"{ "a": [ {"password":null} ] }"#, r#"{ "a": [ {"password":null} ] }"#),
            (
                r#"{"a":[{"apiToken":"x"},{"client-secret":7}]}"#,
                r#"{"a":[{"apiToken":"***"},{"client-secret":"***"}]}"#,
            ),
            (
                r#"{"password_file":"tor-a","key":"/calico/v1/Ready"}"#,
                r#"{"password_file":"tor-a","key":"/calico/v1/Ready"}"#,
            ),
            ("64512", "64512"),
        ] {
            assert_eq!(value(given.as_bytes()), wanted);
        }
    }

    #[test]
    fn lines_lose_what_they_assign_to_a_secret() {
        let redactor = Redactor::default();
        for (given, wanted) in [
            ("TORTIE_ETCD_PASSWORD=hunter2 x=1\n", "TORTIE_ETCD_PASSWORD=*** x=1\n"),
            ("TORTIE_ETCD_PASSWORD_FILE=/etc/x\n", "TORTIE_ETCD_PASSWORD_FILE=/etc/x\n"),
            ("the password: \"two words\", and more", "the password: \"***\", and more"),
            ("{\"token\":\"abc\",\"n\":1}", "{\"token\":\"***\",\"n\":1}"),
            ("etcd://root:geheim@192.0.2.1:2379/x", "etcd://root:***@192.0.2.1:2379/x"),
            ("etcds://192.0.2.1:2379", "etcds://192.0.2.1:2379"),
            (
                "2026-11-22T05:52:16Z peer tor-a: password wrong",
                "2026-11-22T05:52:16Z peer tor-a: password wrong",
            ),
            (
                "a\n-----BEGIN EC PRIVATE KEY-----\nMHc=\n-----END EC PRIVATE KEY-----\nb",
                "a\n*** (a private key)\nb",
            ),
            ("secret=\n", "secret=\n"),
        ] {
            assert_eq!(redactor.clean(given), wanted);
        }
    }

    #[test]
    fn a_known_secret_goes_wherever_it_stands() {
        let mut redactor = Redactor::default();
        redactor.learn_from(br#"{"ip":"192.0.2.1","password":"cor\"vid"}"#);
        redactor.learn("lantern\n");
        redactor.learn("lanterns-two");
        // A secret that is too short to search for would remove half of the archive.
        redactor.learn("a");
        assert_eq!(redactor.clean("x cor\"vid y cor\\\"vid lanterns-two lantern a"), "x *** y *** *** *** a");
    }

    #[test]
    fn a_secret_that_is_the_name_of_a_member_leaves_a_journal_readable() {
        let mut redactor = Redactor::default();
        redactor.learn("first");
        redactor.learn("sec\"ret");
        let journal = "{\"first\":\"the first of sec\\\"ret\",\"list\":[\"first\",1]}\n{\"other\":1}\n";
        let hidden = redactor.hide_in_journal(journal);
        assert_eq!(hidden, "{\"first\":\"the *** of ***\",\"list\":[\"***\",1]}\n{\"other\":1}\n");
    }
}
