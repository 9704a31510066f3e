//! Writes a tar archive (POSIX.1-1988 ustar): files of a few megabytes below one folder. No crate: the header is these lines.

/// Octets of a block.
const BLOCK: usize = 512;

/// An archive in memory.
#[derive(Debug, Default)]
pub(super) struct Archive(Vec<u8>);

impl Archive {
    /// Adds a file, mode 0600. Names are at most 100 octets (ours are); longer ones are cut.
    pub(super) fn add(&mut self, name: &str, unix_time: u64, content: &[u8]) {
        let mut header = [0u8; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| {
            for (to, from) in header.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        };
        put(0, name.as_bytes().get(..name.len().min(100)).unwrap_or_default());
        put(100, b"0000600\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, format!("{unix_time:011o}\0").as_bytes());
        // The checksum is taken with blanks in its own place.
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        put(265, b"root\0");
        put(297, b"root\0");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        for (to, from) in header.iter_mut().skip(148).zip(format!("{sum:06o}\0 ").bytes()) {
            *to = from;
        }
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
    }

    /// The whole, with its two empty blocks at the end.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tar_reads_it() {
        let mut archive = Archive::default();
        archive.add("d/empty", 0, b"");
        archive.add("d/one.txt", 1_790_000_000, b"first\n");
        archive.add("d/block", 1_790_000_000, &[b'x'; BLOCK]);
        let bytes = archive.end();
        assert_eq!(bytes.len() % BLOCK, 0);
        let tar =
            Command::new("tar").args(["-xO", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut tar) = tar else { return eprintln!("skipped: no tar") };
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = tar.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, [b"first\n".as_slice(), &[b'x'; BLOCK]].concat());
    }
}
