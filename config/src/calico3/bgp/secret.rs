//! Passwords of peers. Calico 3 names a key of a Kubernetes Secret; here it is a file of that name below
//! [`SECRETS_DIR`]. Without the file there is no session.

use super::members::Members;
use crate::resource::SECRETS_DIR;

/// Password of sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SecretFile {
    /// There is no password.
    Absent,
    /// Path of the file.
    File(String),
    /// The reference is not valid, and was reported: there must be no session.
    Invalid,
}

/// Reads the reference to a secret, and returns the path of its file. Nothing of it is quoted: it may be the
/// secret itself in the wrong place.
pub(super) fn secret_file(spec: &mut Members<'_, '_>, member: &str) -> SecretFile {
    let Some(value) = spec.get(member) else { return SecretFile::Absent };
    let reference = value.get("secretKeyRef").and_then(|reference| reference.as_object());
    let element = |member: &str| {
        let text = reference?.get(member)?.as_str()?;
        let is_safe = !matches!(text, "" | "." | "..") && !text.contains(['/', '\0']);
        is_safe.then_some(text)
    };
    let Some((name, key)) = element("name").zip(element("key")) else {
        let expected = "write {\"secretKeyRef\": {\"name\", \"key\"}}, names without a slash; there is no session \
                        until then";
        spec.invalid(member, "no reference to a secret", expected);
        return SecretFile::Invalid;
    };
    SecretFile::File(format!("{SECRETS_DIR}/{name}/{key}"))
}
