//! Network namespaces of unit tests.

/// Runs `body` on a thread that has a network namespace of its own; without the right to one it is skipped, in CI a failure.
pub(crate) fn in_netns(body: impl FnOnce() + Send + 'static) {
    let inside = || {
        // SAFETY: only the network namespace of this fresh thread changes.
        #[expect(unsafe_code, reason = "a test in a namespace of its own")]
        let entered = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
        if let Err(error) = entered {
            assert!(std::env::var_os("CI").is_none(), "no network namespace in CI: {error}");
            return eprintln!("skipped: no network namespace ({error})");
        }
        body();
    };
    std::thread::spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
