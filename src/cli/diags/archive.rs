//! Writes a tar archive of small files in memory.

use std::io;

/// An archive, completed by [`Archive::end`].
pub(super) struct Archive(tar::Builder<Vec<u8>>);

impl Archive {
    /// Creates an empty archive.
    pub(super) fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    /// Adds a file owned by root with mode 0600. Equal arguments give equal octets.
    ///
    /// # Errors
    /// If an archive cannot have the name: empty, absolute, or with `..` in it.
    pub(super) fn add(&mut self, name: &str, unix_time: u64, content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(unix_time);
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        self.0.append_data(&mut header, name, content)
    }

    /// Returns the complete archive with its two empty blocks at the end.
    ///
    /// # Errors
    /// Never: writing to a vector does not fail.
    pub(super) fn end(self) -> io::Result<Vec<u8>> {
        self.0.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// Size of a tar block in octets.
    const BLOCK: usize = 512;

    #[test]
    fn tar_reads_it() {
        let mut archive = Archive::new();
        archive.add("d/empty", 0, b"").unwrap();
        archive.add("d/one.txt", 1_790_000_000, b"first\n").unwrap();
        archive.add("d/block", 1_790_000_000, &[b'x'; BLOCK]).unwrap();
        let bytes = archive.end().unwrap();
        assert_eq!(bytes.len() % BLOCK, 0);
        let tar = |args: &[&str]| {
            let tar = Command::new("tar").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut tar = tar.ok()?;
            tar.stdin.take().unwrap().write_all(&bytes).unwrap();
            let output = tar.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
            Some(output.stdout)
        };
        let Some(content) = tar(&["-xO", "-f", "-"]) else { return eprintln!("skipped: no tar") };
        assert_eq!(content, [b"first\n".as_slice(), &[b'x'; BLOCK]].concat());
        let list = String::from_utf8(tar(&["-tv", "--utc", "-f", "-"]).unwrap()).unwrap();
        assert!(
            list.contains("-rw------- root/root") && list.contains("2026-09-21 14:13 d/one.txt"),
            "{list}"
        );
    }
}
