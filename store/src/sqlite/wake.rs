//! Wake-up of watchers: a thread that waits for inotify events of the wake file.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use tokio::sync::Notify;

use super::super::StoreError;
use super::files::Files;

/// Polling interval if inotify is not available (its instances are limited per user).
const POLL_WITHOUT_INOTIFY: Duration = Duration::from_millis(20);
/// Longest time that the thread outlives its watch.
const DEBOUNCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Starts the thread, which ends when the returned value is dropped. Writes after this returns cause a
/// notification.
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

/// Subscribes to changes of the wake file; `None` if inotify is not available.
fn subscribe(files: &Files) -> Result<Option<OwnedFd>, StoreError> {
    // Created by the first process that needs it.
    drop(files.open_wake()?);
    let made = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).and_then(|fd| {
        inotify::add_watch(&fd, &files.wake, inotify::WatchFlags::MODIFY | inotify::WatchFlags::DELETE_SELF)?;
        Ok(fd)
    });
    match made {
        Ok(fd) => Ok(Some(fd)),
        Err(e) => {
            tracing::debug!(target: "tortie::store", error = %e, "no inotify, polling every 20 ms; raise \
                                                                  fs.inotify.max_user_instances");
            Ok(None)
        }
    }
}

/// Reads all pending events; `false` if the wake file itself was removed.
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
