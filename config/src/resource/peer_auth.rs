//! Authentication of TCP connections with peers: TCP MD5 secrets and TCP-AO keys.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use super::peer_options::words;

/// Password files are only read from below this directory.
pub const SECRETS_DIR: &str = "/etc/tortie/secrets";

/// Maximum length in the kernel (`TCP_MD5SIG_MAXKEYLEN`, `TCP_AO_MAXKEYLEN`), in bytes.
const MAX_PASSWORD: usize = 80;

/// A secret for TCP MD5 (RFC 2385) or TCP-AO (RFC 5925); never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// The secret itself, from the store: 1 to 80 bytes.
    Text(String),
    /// A file below [`SECRETS_DIR`] that contains the secret.
    File(PathBuf),
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(***)"),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

impl Password {
    pub(super) fn take(fields: &mut Fields) -> Result<Option<Self>, ValueError> {
        let text = match fields.take("password") {
            None => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) if text.len() <= MAX_PASSWORD && !text.contains('\0') => Some(text),
            Some(_) => {
                let expected = format!("write a text of 1 to {MAX_PASSWORD} bytes");
                return Err(ValueError::new("password", "***", expected));
            }
        };
        let file = fields.text("password_file")?.filter(|file| !file.is_empty());
        match (text, file) {
            (None, None) => Ok(None),
            (Some(text), None) => Ok(Some(Self::Text(text))),
            (None, Some(file)) if is_below_secrets(&file) => Ok(Some(Self::File(file.into()))),
            (None, Some(file)) => {
                let expected = format!("name a file below {SECRETS_DIR}/");
                // Text that is not a path may be the secret itself in the wrong field, so it is not quoted.
                let found = if file.starts_with('/') { format!("`{file}`") } else { "no path".to_owned() };
                Err(ValueError::new("password_file", found, expected))
            }
            (Some(_), Some(_)) => {
                let expected = "give `password` or `password_file`, not both";
                Err(ValueError::new("password_file", "it together with `password`", expected))
            }
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        match self {
            Self::Text(text) => writer.put("password", text.clone()),
            Self::File(path) => writer.put("password_file", path.to_string_lossy().into_owned()),
        }
    }
}

fn is_below_secrets(file: &str) -> bool {
    let Ok(rest) = Path::new(file).strip_prefix(SECRETS_DIR) else { return false };
    // `strip_prefix` compares whole components. The remainder must not contain `..`.
    let mut components = rest.components().peekable();
    components.peek().is_some()
        && components.all(|part| matches!(part, Component::Normal(_)))
        && !file.contains('\0')
}

words! {
    /// Algorithm by which TCP-AO derives traffic keys and authenticates segments (RFC 5926).
    AoAlgorithm: "write \"hmac-sha-1-96\" or \"aes-128-cmac-96\"" {
        /// HMAC-SHA-1-96 (RFC 5926, section 3.2.1).
        HmacSha1 = "hmac-sha-1-96",
        /// AES-128-CMAC-96 (RFC 5926, section 3.2.2).
        AesCmac = "aes-128-cmac-96",
    }
}

/// A master key tuple of TCP-AO (RFC 5925, section 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpAo {
    /// SendID: KeyID of sent segments, which equals the peer's RecvID.
    pub send_id: u8,
    /// RecvID: KeyID of received segments.
    pub receive_id: u8,
    /// MAC algorithm and key derivation function.
    pub algorithm: AoAlgorithm,
    /// Master key.
    pub password: Password,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl TcpAo {
    /// Parses `{"id": 1, "password": "..."}`, with `send_id` and `receive_id` if they differ, and
    /// `algorithm`.
    pub(super) fn take(fields: &mut Fields) -> Result<Option<Self>, ValueError> {
        match fields.take("tcp_ao") {
            None => Ok(None),
            Some(value @ Value::Object(_)) => {
                Self::parse(value).map(Some).map_err(|error| error.within("tcp_ao"))
            }
            // The value may be the secret itself, so it is not quoted.
            Some(_) => {
                let expected = "write {\"id\": 1, \"password_file\": \"/etc/tortie/secrets/NAME\"}";
                Err(ValueError::new("tcp_ao", "no object", expected))
            }
        }
    }

    fn parse(value: Value) -> Result<Self, ValueError> {
        const ID: &str = "write the key's id, 0 to 255; `send_id` and `receive_id` where the two differ";
        let mut fields = Fields::of(value)?;
        let id = fields.number("id", 0, 255)?;
        let send_id = fields.number("send_id", 0, 255)?.or(id);
        let receive_id = fields.number("receive_id", 0, 255)?.or(id);
        let (Some(send_id), Some(receive_id)) = (send_id, receive_id) else {
            return Err(ValueError::missing("id", ID));
        };
        let password = Password::take(&mut fields)?.ok_or_else(|| {
            ValueError::missing("password", "give the master key, or name it in `password_file`")
        })?;
        Ok(Self {
            send_id,
            receive_id,
            algorithm: fields.parsed("algorithm", AoAlgorithm::EXPECTED)?.unwrap_or(AoAlgorithm::HmacSha1),
            password,
            extra: fields.rest(),
        })
    }

    pub(super) fn json(&self) -> Value {
        let mut writer = Writer::default();
        if self.send_id == self.receive_id {
            writer.put("id", self.send_id);
        } else {
            writer.put("send_id", self.send_id);
            writer.put("receive_id", self.receive_id);
        }
        writer.put_text("algorithm", Some(&self.algorithm).filter(|a| **a != AoAlgorithm::HmacSha1));
        self.password.write(&mut writer);
        writer.object(&self.extra)
    }
}
