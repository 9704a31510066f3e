//! Reads files that other users may have created, without blocking on a named pipe in their place.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};

/// Time limit for reading a pipe, such as the shell's `<(command)`.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the content of a file, or the data that arrives through a pipe within two seconds.
///
/// # Errors
/// As [`std::fs::read`]; also for a pipe without a writer, a pipe that does not end in time, and any other
/// kind of file.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut content = Vec::new();
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::Fifo => read_pipe(&mut file, &mut content)?,
        FileType::RegularFile | FileType::Directory => _ = file.read_to_end(&mut content)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
    }
    Ok(content)
}

fn read_pipe(pipe: &mut File, content: &mut Vec<u8>) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let silent = |text: &str| Err(io::Error::new(io::ErrorKind::TimedOut, text));
    loop {
        match pipe.read_to_end(content) {
            Ok(_) if content.is_empty() => return silent("it is a pipe, and no program writes to it"),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let left = end.saturating_duration_since(Instant::now());
        let wait = Timespec::try_from(left).map_err(io::Error::other)?;
        if left.is_zero() || poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&wait))? == 0 {
            return silent("it is a pipe that does not end");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn no_kind_of_file_keeps_a_reader_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = dir.path().join(name);
            rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
            path
        };
        let writer = |path: &Path| std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let begin = Instant::now();
        let failure = |path: &Path| read_file(path).unwrap_err().to_string();
        assert!(failure(&pipe("idle")).contains("no program writes"));
        let silent = pipe("silent");
        let _held = writer(&silent);
        assert!(failure(&silent).contains("does not end"));
        let spoken = pipe("spoken");
        let mut writer = writer(&spoken);
        writer.write_all(b"word").unwrap();
        let reader = std::thread::spawn(move || read_file(&spoken));
        // Close the pipe only after the reader has consumed the word.
        while poll(&mut [PollFd::new(&writer, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0 {
            std::thread::yield_now();
        }
        drop(writer);
        let word = reader.join().unwrap().unwrap();
        assert_eq!(word, b"word");
        std::fs::write(dir.path().join("file"), "text").unwrap();
        assert_eq!(read_file(&dir.path().join("file")).unwrap(), b"text");
        std::fs::write(dir.path().join("empty"), "").unwrap();
        assert_eq!(read_file(&dir.path().join("empty")).unwrap(), b"");
        assert!(read_file(dir.path()).is_err());
        assert!(failure(Path::new("/dev/zero")).contains("no file"));
        assert!(read_file(&dir.path().join("nothing")).is_err_and(|e| e.kind() == io::ErrorKind::NotFound));
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
}
