//! Waking: a thread that sleeps on inotify of the wake file.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use tokio::sync::Notify;

use super::super::StoreError;
use super::files::Files;

/// Looks blindly where inotify is not to be had (its instances are limited for each user).
const POLL_WITHOUT_INOTIFY: Duration = Duration::from_millis(20);
/// How long the thread outlives its watch at most.
const DEBOUNCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Starts the thread; it ends when the answer is dropped. What was written after this returns is told.
pub(super) fn start(files: &Arc<Files>) -> Result<Arc<Notify>, StoreError> {
    let woken = Arc::new(Notify::new());
    let first = subscribe(files)?;
    let (files, listener) = (Arc::clone(files), Arc::downgrade(&woken));
    std::thread::Builder::new()
        .name("store-wake".into())
        .spawn(move || run(&files, first, &listener))
        .map_err(|e| StoreError::Unreachable(format!("cannot start a thread: {e}")))?;
    Ok(woken)
}

fn run(files: &Files, mut source: Option<OwnedFd>, listener: &Weak<Notify>) {
    loop {
        let moved = match &source {
            Some(fd) => {
                let ready = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&DEBOUNCE)).unwrap_or(0) > 0;
                if ready && !drain(fd) {
                    source = subscribe(files).unwrap_or(None);
                }
                ready
            }
            None => {
                std::thread::sleep(POLL_WITHOUT_INOTIFY);
                true
            }
        };
        let Some(listener) = listener.upgrade() else { return };
        if moved {
            listener.notify_one();
        }
    }
}

/// `None` where inotify is not to be had.
fn subscribe(files: &Files) -> Result<Option<OwnedFd>, StoreError> {
    // Made by whoever comes first.
    drop(files.open_wake()?);
    let made = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).and_then(|fd| {
        inotify::add_watch(&fd, &files.wake, inotify::WatchFlags::MODIFY | inotify::WatchFlags::DELETE_SELF)?;
        Ok(fd)
    });
    match made {
        Ok(fd) => Ok(Some(fd)),
        Err(e) => {
            tracing::debug!(target: "tortie::store", error = %e, "no inotify, looking each 20 ms; raise fs.inotify.max_user_instances");
            Ok(None)
        }
    }
}

/// Reads all events; `false` when the wake file itself is gone.
fn drain(fd: &OwnedFd) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut events = inotify::Reader::new(fd, &mut buffer);
    loop {
        match events.next() {
            Ok(event) if event.events().contains(inotify::ReadFlags::IGNORED) => return false,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}
