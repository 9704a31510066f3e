//! Temporary network namespaces for tests: each belongs to one thread and ends with it.

#![allow(
    unsafe_code,
    dead_code,
    clippy::expect_used,
    reason = "enters a namespace; test helper, not every test uses all of it"
)]

use std::process::Command;

/// Runs `body` on a thread with its own empty network namespace (loopback up). Without permission to create
/// one, the test is skipped with a message; in CI (`CI` set) that is a failure.
pub(crate) fn in_netns(body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: only the network namespace of this new thread changes; no file descriptors are affected.
        if let Err(error) = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) } {
            assert!(std::env::var_os("CI").is_none(), "no network namespace in CI: {error}");
            eprintln!("skipped: no network namespace ({error}); run as root or under `unshare -rn`");
            return;
        }
        ip("link set lo up");
        body();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` with these arguments in the namespace of the calling thread; panics on failure.
pub(crate) fn ip(words: &str) -> String {
    let out = try_ip(words);
    assert!(out.0, "ip {words}: {}", out.1);
    out.1
}

/// Like [`ip`], but returns success and output. Harmless warnings about namespaces that others remove are
/// filtered out.
pub(crate) fn try_ip(words: &str) -> (bool, String) {
    let out = Command::new("ip").args(words.split_whitespace()).output().expect("iproute2 is installed");
    let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        text += &String::from_utf8_lossy(&out.stderr);
    }
    (out.status.success(), text)
}

/// Passes many lines to `ip -batch`.
pub(crate) fn ip_batch(lines: &str) {
    use std::io::Write;
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("iproute2 is installed");
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("ip reads");
    assert!(child.wait().expect("ip ends").success());
}

/// Creates a veth pair with both ends in this namespace and up; the first end has these addresses.
pub(crate) fn veth(name: &str, peer: &str, addresses: &[&str]) {
    ip(&format!("link add {name} type veth peer name {peer}"));
    for address in addresses {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        ip(&format!("address add {address} dev {name}{nodad}"));
    }
    ip(&format!("link set {name} up"));
    ip(&format!("link set {peer} up"));
    // Until the kernel reports that, routes of the link are shown as `linkdown`.
    for _ in 0..6_000 {
        if ip(&format!("link show {name}")).contains("state UP") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{name} has no carrier");
}

/// Runs a body in a new namespace until the caller signals it. Returns the sender of that signal, and the
/// path of the namespace, which exists as long as a socket in it is open.
pub(crate) fn in_netns_kept(body: impl FnOnce() + Send + 'static) -> (std::sync::mpsc::Sender<()>, String) {
    let (go, receiver) = std::sync::mpsc::channel();
    let (sender, path) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: only the network namespace of this new thread changes; no file descriptors are affected.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
            .expect("a second namespace like the first");
        let thread = rustix::thread::gettid().as_raw_nonzero();
        sender.send(format!("/proc/{}/task/{thread}/ns/net", std::process::id())).expect("somebody waits");
        if receiver.recv().is_ok() {
            ip("link set lo up");
            body();
        }
    });
    (go, path.recv().expect("the namespace exists"))
}
