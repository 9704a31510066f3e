//! Keys of TCP MD5 and TCP-AO, from the intent or from a file that only its owner can read.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tortie_engine::routing::{AoAlgorithm, Password, TcpAo};

/// Explanation of a refused access: with Landlock, the agent opens only files that existed at its start, or
/// that are renewed in a folder that did.
const CLOSED: &str = "permission denied; if its folder was made, replaced or mounted after the agent's \
                      start, restart the agent";

/// Folder that password files must be in.
pub const SECRETS: &str = "/etc/tortie/secrets";

/// A key of TCP MD5 (RFC 2385) or TCP-AO (RFC 5925), 1 to 80 octets; never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key {
    bytes: Vec<u8>,
    ao: Option<Ao>,
}

/// Parameters of a TCP-AO key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ao {
    pub(crate) send_id: u8,
    pub(crate) receive_id: u8,
    pub(crate) algorithm: AoAlgorithm,
}

impl Key {
    /// Maximum length in octets: `TCP_MD5SIG_MAXKEYLEN` and `TCP_AO_MAXKEYLEN` of linux/tcp.h.
    pub(crate) const MAX: usize = 80;

    /// Reads the key that a password refers to.
    ///
    /// # Errors
    /// Returns a description with the file and without the secret.
    pub(crate) fn read(password: &Password, secrets: &Path) -> Result<Self, String> {
        match password {
            Password::Text(text) => Self::new(text.as_bytes().to_vec()),
            Password::File(path) => Self::from_file(path, secrets),
        }
    }

    /// Reads a TCP-AO key.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_ao(ao: &TcpAo, secrets: &Path) -> Result<Self, String> {
        let mut key = Self::read(&ao.password, secrets)?;
        key.ao = Some(Ao { send_id: ao.send_id, receive_id: ao.receive_id, algorithm: ao.algorithm });
        Ok(key)
    }

    /// Returns the TCP-AO parameters; `None` for a TCP MD5 key.
    pub(crate) fn ao(&self) -> Option<Ao> {
        self.ao
    }

    /// Returns the name of the key's kind.
    pub(crate) fn kind(&self) -> &'static str {
        if self.ao.is_some() { "TCP-AO" } else { "TCP MD5" }
    }

    /// Creates a TCP MD5 key.
    ///
    /// # Errors
    /// Returns an error when its length is invalid.
    pub(crate) fn new(bytes: Vec<u8>) -> Result<Self, String> {
        match bytes.len() {
            0 => Err("the password is empty; give 1 to 80 bytes or remove the field".into()),
            1..=Self::MAX => Ok(Self { bytes, ao: None }),
            n => Err(format!("the password has {n} bytes; TCP takes at most 80")),
        }
    }

    fn from_file(path: &Path, secrets: &Path) -> Result<Self, String> {
        let place = |what: String| format!("password file {}: {what}", path.display());
        let root = secrets.canonicalize().map_err(|e| place(format!("{}: {e}", secrets.display())))?;
        let named: PathBuf = if path.is_absolute() { path.to_owned() } else { root.join(path) };
        // The path is resolved first: a symbolic link or `..` must not lead out of the folder.
        let real = named.canonicalize().map_err(|e| place(e.to_string()))?;
        if !real.starts_with(&root) {
            return Err(place(format!("it must lie below {}", secrets.display())));
        }
        // Opening a pipe without this flag would block the thread of all sessions until another process
        // writes to it.
        let mut file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&real).map_err(|e| match e
                .kind()
            {
                ErrorKind::PermissionDenied => place(CLOSED.to_owned()),
                _ => place(e.to_string()),
            })?;
        let meta = file.metadata().map_err(|e| place(e.to_string()))?;
        if !meta.is_file() {
            return Err(place("it is not a regular file".into()));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(place(format!(
                "mode {:04o} lets other users read it; chmod 0600 it",
                meta.mode() & 0o7777
            )));
        }
        let mut bytes = Vec::new();
        file.by_ref().take(4096).read_to_end(&mut bytes).map_err(|e| place(e.to_string()))?;
        while matches!(bytes.last(), Some(b'\n' | b'\r')) {
            bytes.pop();
        }
        Self::new(bytes).map_err(place)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(***)")
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.bytes.fill(0);
        std::hint::black_box(&self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn file(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_private_file_gives_its_first_bytes_without_the_newline() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), "a", b"s3cret pass\r\n", 0o600);
        assert_eq!(Key::read(&Password::File(path), dir.path()).unwrap().bytes(), b"s3cret pass");
        file(dir.path(), "b", b"x", 0o400);
        assert_eq!(Key::read(&Password::File("b".into()), dir.path()).unwrap().bytes(), b"x");
    }

    #[test]
    fn files_that_others_read_or_that_lie_elsewhere_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let open = file(dir.path(), "open", b"x", 0o640);
        let error = Key::read(&Password::File(open), dir.path()).unwrap_err();
        assert!(error.contains("0640") && error.contains("chmod 0600"), "{error}");
        let outside = file(other.path(), "x", b"x", 0o600);
        let error = Key::read(&Password::File(outside.clone()), dir.path()).unwrap_err();
        assert!(error.contains("must lie below"), "{error}");
        symlink(&outside, dir.path().join("link")).unwrap();
        assert!(
            Key::read(&Password::File("link".into()), dir.path()).unwrap_err().contains("must lie below")
        );
        assert!(Key::read(&Password::File("../x".into()), dir.path()).is_err());
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::set_permissions(dir.path().join("d"), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(Key::read(&Password::File("d".into()), dir.path()).unwrap_err().contains("regular file"));
        let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("p")).status().unwrap();
        assert!(pipe.success());
        assert!(Key::read(&Password::File("p".into()), dir.path()).unwrap_err().contains("regular file"));
    }

    #[test]
    fn keys_are_1_to_80_bytes_and_are_never_printed() {
        let key = |n: usize| Key::read(&Password::Text("k".repeat(n)), Path::new("/"));
        assert!(key(0).is_err());
        assert!(key(80).is_ok());
        assert!(key(81).unwrap_err().contains("at most 80"));
        assert_eq!(format!("{:?}", key(3).unwrap()), "Key(***)");
    }
}
