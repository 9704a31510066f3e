//! Versions of the CNI specification.

use serde_json::{Map, Value, json};

use crate::plugins::cni::protocol::error::{CniError, code, short};

/// A supported version of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0: the version of a configuration without `cniVersion`.
    V0_1_0,
    /// 0.2.0: results as in 0.1.0.
    V0_2_0,
    /// 0.3.0: results with `interfaces` and `ips`.
    V0_3_0,
    /// 0.3.1: as 0.3.0.
    V0_3_1,
    /// 0.4.0: adds `CHECK`, and `prevResult` for `DEL`.
    V0_4_0,
    /// 1.0.0: `ips` without `version`.
    V1_0_0,
    /// 1.1.0: adds `GC` and `STATUS`.
    V1_1_0,
}

impl Version {
    /// All versions, the oldest first.
    pub const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    /// The newest supported version.
    pub const NEWEST: Self = Self::V1_1_0;

    /// Returns the version as text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Returns the version of a configuration or result.
    ///
    /// # Errors
    /// Code 1 for an unsupported version.
    pub fn of(object: &Map<String, Value>) -> Result<Self, CniError> {
        match object.get("cniVersion") {
            None | Some(Value::Null) => Ok(Self::V0_1_0),
            Some(Value::String(text)) if text.is_empty() => Ok(Self::V0_1_0),
            Some(Value::String(text)) => {
                Self::ALL.into_iter().find(|v| v.as_str() == text).ok_or_else(|| {
                    let all = Self::ALL.map(Self::as_str).join(", ");
                    let text = short(text);
                    CniError::new(code::VERSION, format!("`cniVersion` is \"{text}\"; we speak {all}"))
                })
            }
            Some(other) => Err(CniError::value("cniVersion", other, "write a version such as \"1.0.0\"")),
        }
    }

    /// Returns the answer to `VERSION`: the version of the input if it is supported, and all supported
    /// versions. Input that cannot be parsed is ignored, because runtimes drop a network whose plugin fails
    /// here.
    #[must_use]
    pub fn answer(input: &[u8]) -> Value {
        let object = serde_json::from_slice::<Map<String, Value>>(input).unwrap_or_default();
        let version = match object.get("cniVersion") {
            Some(_) => Self::of(&object).unwrap_or(Self::NEWEST),
            None => Self::NEWEST,
        };
        json!({ "cniVersion": version.as_str(), "supportedVersions": Self::ALL.map(Self::as_str) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_without_version_is_the_oldest_and_an_unknown_one_is_code_1() {
        let of = |value: Value| Version::of(value.as_object().unwrap());
        assert_eq!(of(json!({})), Ok(Version::V0_1_0));
        assert_eq!(of(json!({"cniVersion": ""})), Ok(Version::V0_1_0));
        for version in Version::ALL {
            assert_eq!(of(json!({"cniVersion": version.as_str()})), Ok(version));
        }
        for other in ["0.5.0", "1.2.0", "2.0.0", "1", "latest"] {
            let error = of(json!({"cniVersion": other})).unwrap_err();
            assert_eq!(error.code, code::VERSION);
            assert!(error.msg.contains(other) && error.msg.contains("1.1.0"), "{error}");
        }
        assert_eq!(of(json!({"cniVersion": 1})).unwrap_err().code, code::CONFIG);
    }

    #[test]
    fn version_answers_whatever_comes_in() {
        for (input, version) in [
            (&br#"{"cniVersion":"0.4.0"}"#[..], "0.4.0"),
            (br#"{"cniVersion":"9.9.9"}"#, "1.1.0"),
            (b"", "1.1.0"),
            (b"{{", "1.1.0"),
            (b"[]", "1.1.0"),
        ] {
            let answer = Version::answer(input);
            assert_eq!(answer["cniVersion"], version);
            let all = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
            assert_eq!(answer["supportedVersions"], json!(all));
        }
    }
}
