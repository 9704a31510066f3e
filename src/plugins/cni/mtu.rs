//! MTU of new interfaces: from the configuration, or on a store of Calico 3 from the file that the agent of the
//! host writes.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use tortie_config::Dialect;

use super::config::Config;
use super::protocol::error::{CniError, code};

/// File with the MTU of workloads, unless the configuration names another.
pub(crate) const MTU_FILE: &str = "/var/lib/calico/mtu";
/// Maximum MTU of an interface, in octets.
const MTU_MAX: u32 = 65_535;

/// Returns the MTU of the interfaces of a container; `None` for the kernel's default.
///
/// # Errors
/// Code 7 if the file holds no MTU, code 11 if the configuration requires the file and the agent has not written
/// it yet.
pub(super) fn mtu(config: &Config, dialect: Dialect) -> Result<Option<u32>, CniError> {
    if config.mtu.is_some() || dialect == Dialect::V1 {
        return Ok(config.mtu);
    }
    let path = config.mtu_file.as_deref().unwrap_or(Path::new(MTU_FILE));
    let shown = path.display();
    match fs::read_to_string(path) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(0) => Ok(None),
            Ok(mtu) if mtu <= MTU_MAX => Ok(Some(mtu)),
            _ => {
                let shown_text: String = text.trim().chars().take(20).collect();
                let msg = format!(
                    "{shown} holds no MTU, but `{}`: remove it, and the agent writes it again within 30 s",
                    shown_text.escape_debug()
                );
                Err(CniError::new(code::CONFIG, msg))
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound && !config.requires_mtu_file => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let msg =
                format!("{shown}, which `require_mtu_file` asks for, does not exist: does the agent run?");
            Err(CniError::new(code::TRY_AGAIN, msg))
        }
        Err(error) => Err(CniError::new(code::CONFIG, format!("{shown} cannot be read: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::cni::config::Strictness;

    fn of(fields: &str, dialect: Dialect) -> Result<Option<u32>, u32> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"tortie"{fields}}}"#);
        let config = Config::parse(text.as_bytes(), Strictness::Refuse, &[]).unwrap();
        mtu(&config, dialect).map_err(|error| error.code)
    }

    #[test]
    fn the_file_counts_on_a_store_of_calico_3_where_the_configuration_has_no_mtu() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mtu");
        let field = format!(r#","mtu_file":"{}""#, path.display());
        assert_eq!(of(&field, Dialect::V3), Ok(None));
        let required = format!(r#"{field},"require_mtu_file":true"#);
        assert_eq!(of(&required, Dialect::V3), Err(code::TRY_AGAIN));
        for (text, read) in [
            ("1450", Ok(Some(1_450))),
            ("1450\n", Ok(Some(1_450))),
            ("0", Ok(None)),
            ("", Err(code::CONFIG)),
            ("65536", Err(code::CONFIG)),
            ("-1", Err(code::CONFIG)),
            ("many\u{1b}[2J", Err(code::CONFIG)),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(of(&field, Dialect::V3), read, "{text:?}");
            assert_eq!(of(&required, Dialect::V3), read, "{text:?}");
            assert_eq!(of(&required, Dialect::V1), Ok(None), "{text:?}");
            assert_eq!(of(&format!(r#"{field},"mtu":1400"#), Dialect::V3), Ok(Some(1_400)), "{text:?}");
            assert_eq!(of(&format!(r#"{field},"mtu":0"#), Dialect::V3), read, "{text:?}");
        }
        assert_eq!(of(&format!(r#","mtu_file":"{}""#, dir.path().display()), Dialect::V3), Err(code::CONFIG));
    }
}
