//! Checks of names and labels before they are written, as Calico's clients check them.

use super::super::{ObjectError, ObjectKey, convert};

/// Maximum length of the name of an object, and of the prefix of a label's name.
const NAME_MAX: usize = 253;
/// Maximum length of the name of a namespace, of a label's name without its prefix, and of its value.
const LABEL_MAX: usize = 63;

/// Returns the name that the profile of a network or namespace has in Calico 3. One that is no DNS name is
/// changed as Calico's upgrade changes it, with a hash of the old one, so that two names stay two.
#[must_use]
pub fn profile_name(name: &str) -> String {
    convert::names::profile(name)
}

/// Checks that Calico's clients accept the name and the namespace of an object.
///
/// # Errors
/// If one of them is no DNS name.
pub fn check_name(key: &ObjectKey) -> Result<(), ObjectError> {
    let refuse = |member: &str, name: &str, max: usize| {
        let text = format!(
            "`{name}` is no name for Calico 3: write a DNS name (lower case letters, digits, `-` and `.`, a \
             letter or digit at both ends) of at most {max} characters"
        );
        Err(ObjectError::new(member, text))
    };
    if !is_dns_name(&key.name) {
        return refuse("metadata.name", &key.name, NAME_MAX);
    }
    match &key.namespace {
        Some(name) if !is_dns_label(name) || name.len() > LABEL_MAX => {
            refuse("metadata.namespace", name, LABEL_MAX)
        }
        _ => Ok(()),
    }
}

/// Checks that Calico's clients accept a label.
///
/// # Errors
/// If the name or the value has another form than Kubernetes' labels.
pub fn check_label(name: &str, value: &str) -> Result<(), ObjectError> {
    let (prefix, rest) = name.split_once('/').map_or((None, name), |(prefix, rest)| (Some(prefix), rest));
    let has_name = !rest.is_empty() && is_label_text(rest) && prefix.is_none_or(is_dns_name);
    if has_name && is_label_text(value) {
        return Ok(());
    }
    let text = format!(
        "`{name}={value}` is no label for Calico 3: write a name and a value of at most {LABEL_MAX} letters, \
         digits, `-`, `_` and `.`, a letter or digit at both ends; before the name there may be a DNS name and \
         `/`"
    );
    Err(ObjectError::new("metadata.labels", text))
}

fn is_label_text(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= LABEL_MAX
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

fn is_dns_name(name: &str) -> bool {
    name.len() <= NAME_MAX && name.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    !label.is_empty()
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
