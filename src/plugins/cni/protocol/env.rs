//! Environment of a call: `CNI_COMMAND` and the variables that it needs.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::plugins::cni::protocol::error::{CniError, code, short};

/// Command of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Attaches a container.
    Add,
    /// Detaches a container; may be repeated.
    Del,
    /// Compares the actual state with the result of `ADD`.
    Check,
    /// Removes all attachments that are not listed.
    Gc,
    /// Tests if an `ADD` could succeed now.
    Status,
    /// Lists the supported versions.
    Version,
}

impl Command {
    /// Returns the value of `CNI_COMMAND`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

/// Environment of a call, validated for its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Env {
    /// `CNI_COMMAND`: the command.
    pub command: Command,
    /// `CNI_CONTAINERID`: the container id; empty for commands without one.
    pub container_id: String,
    /// `CNI_NETNS`: path of the network namespace; `None` if empty, which only `DEL` permits.
    pub netns: Option<PathBuf>,
    /// `CNI_IFNAME`: name of the interface; empty for commands without one.
    pub ifname: String,
    /// `CNI_PATH`: folders of plugins.
    pub path: Vec<PathBuf>,
    /// `CNI_ARGS`: arguments of the caller, unparsed.
    pub args: String,
}

/// Maximum length of a container id, which is part of store keys; runtimes use 64 characters.
const ID_MAX: usize = 255;

impl Env {
    /// Reads and validates the variables that the command needs. Returns `None` without `CNI_COMMAND`: a user
    /// runs the program, not a runtime.
    ///
    /// # Errors
    /// Code 4, with the names of missing or malformed variables.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, CniError> {
        let text = |name: &str| match get(name).map(OsString::into_string) {
            None => Ok(String::new()),
            Some(Ok(text)) => Ok(text),
            Some(Err(_)) => Err(CniError::new(code::ENVIRONMENT, format!("{name} is not UTF-8 text"))),
        };
        let command = match text("CNI_COMMAND")?.as_str() {
            "" => return Ok(None),
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "GC" => Command::Gc,
            "STATUS" => Command::Status,
            "VERSION" => Command::Version,
            other => {
                let msg = format!(
                    "CNI_COMMAND is \"{}\": write ADD, DEL, CHECK, GC, STATUS or VERSION",
                    short(other)
                );
                return Err(CniError::new(code::ENVIRONMENT, msg));
            }
        };
        let mut env = Self {
            command,
            container_id: String::new(),
            netns: None,
            ifname: String::new(),
            path: Vec::new(),
            args: String::new(),
        };
        if command == Command::Version {
            return Ok(Some(env));
        }
        let path = text("CNI_PATH")?;
        env.path = path.split(':').filter(|dir| !dir.is_empty()).map(PathBuf::from).collect();
        let needed: &[&str] = match command {
            Command::Add | Command::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
            Command::Del => &["CNI_CONTAINERID", "CNI_IFNAME"],
            Command::Gc | Command::Status | Command::Version => return Ok(Some(env)),
        };
        env.container_id = text("CNI_CONTAINERID")?;
        env.ifname = text("CNI_IFNAME")?;
        env.args = text("CNI_ARGS")?;
        let netns = get("CNI_NETNS").filter(|path| !path.is_empty());
        let missing: Vec<_> = needed
            .iter()
            .filter(|name| match **name {
                "CNI_CONTAINERID" => env.container_id.is_empty(),
                "CNI_NETNS" => netns.is_none(),
                _ => env.ifname.is_empty(),
            })
            .copied()
            .collect();
        if !missing.is_empty() {
            let msg =
                format!("{} needs {}, which the runtime did not set", command.as_str(), missing.join(", "));
            return Err(CniError::new(code::ENVIRONMENT, msg));
        }
        env.netns = netns.map(PathBuf::from);
        check_id(&env.container_id)?;
        check_ifname(&env.ifname)?;
        Ok(Some(env))
    }
}

/// True for a valid container id or network name: letters, digits, `_`, `.` and `-`, a letter or digit first,
/// at most 255 characters.
#[must_use]
pub fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        && text.len() <= ID_MAX
}

fn check_id(id: &str) -> Result<(), CniError> {
    if is_identifier(id) {
        return Ok(());
    }
    let msg = format!(
        "CNI_CONTAINERID is \"{}\": write up to {ID_MAX} letters, digits, `_`, `.` and `-`, a letter or digit first",
        short(id)
    );
    Err(CniError::new(code::ENVIRONMENT, msg))
}

fn check_ifname(name: &str) -> Result<(), CniError> {
    name.parse::<tortie_config::resource::InterfaceName>()
        .map(|_| ())
        .map_err(|error| CniError::new(code::ENVIRONMENT, format!("CNI_IFNAME is wrong: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Env>, CniError> {
        let map: BTreeMap<&str, &str> = pairs.iter().copied().collect();
        Env::read(|name| map.get(name).map(OsString::from))
    }

    const WHOLE: [(&str, &str); 5] = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/a"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin::/usr/lib/cni"),
    ];

    fn with(name: &str, value: &str) -> Result<Option<Env>, CniError> {
        let mut pairs = WHOLE.to_vec();
        pairs.retain(|(n, _)| *n != name);
        pairs.push((WHOLE.iter().find(|(n, _)| *n == name).unwrap().0, value));
        read(&pairs)
    }

    #[test]
    fn a_whole_environment_is_read() {
        let env = read(&WHOLE).unwrap().unwrap();
        assert_eq!(env.command, Command::Add);
        assert_eq!((env.container_id.as_str(), env.ifname.as_str()), ("c1", "eth0"));
        assert_eq!(env.netns, Some("/run/netns/a".into()));
        assert_eq!(env.path, [PathBuf::from("/opt/cni/bin"), PathBuf::from("/usr/lib/cni")]);
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn what_is_missing_is_named_all_at_once() {
        let error = read(&[("CNI_COMMAND", "ADD"), ("CNI_NETNS", "")]).unwrap_err();
        assert_eq!(error.code, code::ENVIRONMENT);
        for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
            assert!(error.msg.contains(name), "{error}");
        }
        let error = read(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1")]).unwrap_err();
        assert!(error.msg.contains("CNI_IFNAME") && !error.msg.contains("CNI_NETNS"), "{error}");
        let del = read(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")]);
        assert_eq!(del.unwrap().unwrap().netns, None);
        for command in ["GC", "STATUS", "VERSION"] {
            assert!(read(&[("CNI_COMMAND", command)]).is_ok(), "{command}");
        }
    }

    #[test]
    fn malformed_variables_are_code_4() {
        let long = "a".repeat(256);
        for (name, value) in [
            ("CNI_COMMAND", "add"),
            ("CNI_COMMAND", "PING"),
            ("CNI_CONTAINERID", "../x"),
            ("CNI_CONTAINERID", "-x"),
            ("CNI_CONTAINERID", "a/b"),
            ("CNI_CONTAINERID", "a b"),
            ("CNI_CONTAINERID", &long),
            ("CNI_IFNAME", "sixteen-letters-"),
            ("CNI_IFNAME", "a/b"),
            ("CNI_IFNAME", "a:b"),
            ("CNI_IFNAME", ".."),
        ] {
            let error = with(name, value).unwrap_err();
            assert_eq!(error.code, code::ENVIRONMENT, "{name}={value}");
            assert!(error.msg.contains(name), "{error}");
        }
    }
}
