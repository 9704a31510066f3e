//! Runs a closure in a new network namespace, for tests of code that configures its own namespace.

/// Runs `body` on a thread with a new network namespace, whose loopback interface is up. Without the
/// privilege to create one the test is skipped, with a message on standard error.
///
/// # Panics
/// If `body` panics, and in CI (environment variable `CI`) if the namespace cannot be created or loopback
/// stays down.
pub fn in_netns(body: impl FnOnce() + Send + 'static) {
    let inside = || {
        // SAFETY: only the network namespace of this new thread changes.
        #[expect(unsafe_code, reason = "a test in a namespace of its own")]
        let entered = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
        if let Err(error) = entered {
            assert!(std::env::var_os("CI").is_none(), "no network namespace in CI: {error}");
            return eprintln!("skipped: no network namespace ({error})");
        }
        if let Err(error) = crate::run::loopback_up() {
            assert!(std::env::var_os("CI").is_none(), "no loopback in CI: {error}");
            return eprintln!("skipped: no loopback ({error})");
        }
        body();
    };
    std::thread::spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
