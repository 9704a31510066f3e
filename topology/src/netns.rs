//! A network namespace for a closure: for tests of code that programs the namespace it runs in.

/// Runs `body` on a thread that has an empty network namespace of its own, its loopback up. Without the right to create one
/// it is skipped, with a line on stderr.
///
/// # Panics
/// With `body`, and in CI (environment `CI`) where no namespace can be created or its loopback stays down.
pub fn in_netns(body: impl FnOnce() + Send + 'static) {
    let inside = || {
        // SAFETY: only the network namespace of this fresh thread changes.
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
