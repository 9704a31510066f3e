//! Enters the network namespaces of containers, in this process or through a helper process.
//!
//! Entering a namespace requires CAP_SYS_ADMIN, and opening those of processes CAP_SYS_PTRACE. The process
//! that parses BGP and serves HTTP has neither: it starts a helper before it drops them, and sends it
//! requests.
//!
//! ```text
//!   agent --[request, one end of a socket pair]--> SOCK_SEQPACKET, the helper's standard input --> helper
//!         <------------- answer, on the other end of that pair ---------------------------------
//! ```
//!
//! The helper executes only the requests of `Request`, one after the other, and ends with the agent. If the
//! path in a request is no network namespace, nothing is done.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

use crate::container::{ContainerNetError, MoveState, MovedInterface, complete_moved, sweep_source_rules};
use crate::inspect::address_use::{AddressUses, address_uses};

/// Time limit for an answer: reading a host with ten thousand namespaces takes some seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum size of a request, in octets. A pool that covers a whole family has some thousand prefixes.
const REQUEST_MAX: usize = 128 << 10;
/// The executable of this process, even if the file at its path was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// A request to the helper.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    AddressUses,
    CompleteMoved {
        host: String,
        mac: String,
        addrs: Vec<IpAddr>,
        gateways: Vec<IpAddr>,
        prefixes: Vec<Cidr>,
        namespace: PathBuf,
    },
    SweepSourceRules {
        namespace: PathBuf,
    },
}

/// The way to enter the network namespaces of this host's containers.
#[derive(Debug, Clone, Default)]
pub enum Namespaces {
    /// By a thread of this process.
    #[default]
    Direct,
    /// By the helper, over this socket.
    Helper(Arc<OwnedFd>),
    /// Not possible, with the reason.
    Closed(String),
}

impl Namespaces {
    /// Starts the helper: this program with `words` as arguments, which must call [`serve`]. It has the
    /// present capabilities of this thread and an empty environment.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start_helper(words: &[&str]) -> io::Result<Self> {
        let (own, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&own, Timeout::Send, Some(PATIENCE))?;
        // A separate process group: Ctrl-C reaches the agent only, and the helper ends with the agent.
        Command::new(PROGRAM)
            .arg0("tortie")
            .args(words)
            .env_clear()
            .current_dir("/")
            .stdin(theirs)
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self::Helper(Arc::new(own)))
    }

    /// Returns true if the helper is alive, that is, its end of the socket is open.
    #[must_use]
    pub fn has_helper(&self) -> bool {
        let Self::Helper(socket) = self else { return false };
        let mut ends = [PollFd::new(&**socket, PollFlags::empty())];
        let closed = |end: &PollFd<'_>| end.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        poll(&mut ends, Some(&Timespec::default())).is_ok() && !ends.iter().any(closed)
    }

    /// Calls [`address_uses`], in the helper if there is one.
    ///
    /// # Errors
    /// As [`address_uses`]; also if there is no helper.
    pub fn address_uses(&self) -> io::Result<AddressUses> {
        match self {
            Self::Direct => address_uses(),
            Self::Helper(socket) => ask(socket, &Request::AddressUses),
            Self::Closed(why) => Err(io::Error::other(why.clone())),
        }
    }

    /// Calls [`complete_moved`], in the helper if there is one.
    ///
    /// # Errors
    /// As [`complete_moved`]; also if there is no helper.
    pub fn complete_moved(
        &self,
        moved: &MovedInterface,
        namespace: &Path,
    ) -> Result<MoveState, ContainerNetError> {
        match self {
            Self::Direct => complete_moved(moved, namespace),
            _ => self.by_helper(&Request::CompleteMoved {
                host: moved.host.to_string(),
                mac: moved.mac.to_string(),
                addrs: moved.addrs.clone(),
                gateways: moved.gateways.clone(),
                prefixes: moved.prefixes.clone(),
                namespace: namespace.to_owned(),
            }),
        }
    }

    /// Calls [`sweep_source_rules`], in the helper if there is one.
    ///
    /// # Errors
    /// As [`sweep_source_rules`]; also if there is no helper.
    pub fn sweep_source_rules(&self, namespace: &Path) -> Result<(), ContainerNetError> {
        match self {
            Self::Direct => sweep_source_rules(namespace),
            _ => self.by_helper(&Request::SweepSourceRules { namespace: namespace.to_owned() }),
        }
    }

    fn by_helper<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ContainerNetError> {
        let answered = match self {
            Self::Helper(socket) => ask(socket, request),
            Self::Direct => Err(io::Error::other("there is no helper")),
            Self::Closed(why) => Err(io::Error::other(why.clone())),
        };
        answered.map_err(|error| ContainerNetError::Invalid(error.to_string()))
    }
}

/// Sends a request and waits for its answer.
fn ask<T: DeserializeOwned>(helper: &OwnedFd, request: &Request) -> io::Result<T> {
    let text = serde_json::to_vec(request)?;
    let (mut answer, theirs) = UnixStream::pair()?;
    answer.set_read_timeout(Some(PATIENCE))?;
    let gone = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("the helper that enters network namespaces does not answer ({error}): restart the agent"),
        )
    };
    {
        let passed = [theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&passed));
        sendmsg(helper, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)
            .map_err(|error| gone(error.into()))?;
    }
    // Only the helper holds the other end then, so closing it ends the answer.
    drop(theirs);
    let mut octets = Vec::new();
    answer.read_to_end(&mut octets).map_err(gone)?;
    if octets.is_empty() {
        return Err(gone(io::ErrorKind::UnexpectedEof.into()));
    }
    serde_json::from_slice::<Result<T, String>>(&octets)?.map_err(io::Error::other)
}

/// Main loop of the helper: executes requests until the other end is closed.
pub fn serve(requests: impl AsFd) {
    let mut text = vec![0; REQUEST_MAX];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let read =
            recvmsg(&requests, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let octets = match read {
            Err(Errno::INTR) => continue,
            Err(_) => return,
            Ok(read) if read.bytes == 0 => return,
            Ok(read) => read.bytes,
        };
        let passed = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut all) => all.next(),
            _ => None,
        });
        let Some(passed) = passed else { continue };
        // A client that does not read its answer must not block the helper for ever.
        if set_socket_timeout(&passed, Timeout::Send, Some(PATIENCE)).is_err() {
            continue;
        }
        let answer = carry_out(text.get(..octets).unwrap_or_default());
        let mut rest = answer.as_slice();
        // `send` works on sockets only, so no other kind of passed file is written to.
        while let Ok(sent @ 1..) = send(&passed, rest, SendFlags::NOSIGNAL) {
            rest = rest.get(sent..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
        }
    }
}

/// Executes a request and returns the encoded answer.
fn carry_out(request: &[u8]) -> Vec<u8> {
    let answer = match serde_json::from_slice(request) {
        Ok(Request::AddressUses) => encode(address_uses().map_err(|error| error.to_string())),
        Ok(Request::CompleteMoved { host, mac, addrs, gateways, prefixes, namespace }) => {
            match (host.parse(), mac.parse()) {
                (Ok(host), Ok(mac)) => {
                    let moved = MovedInterface { host, mac, addrs, gateways, prefixes };
                    encode(complete_moved(&moved, &namespace).map_err(|error| error.to_string()))
                }
                _ => encode::<()>(Err("no name of an interface, or no MAC address".to_owned())),
            }
        }
        Ok(Request::SweepSourceRules { namespace }) => {
            encode(sweep_source_rules(&namespace).map_err(|error| error.to_string()))
        }
        Err(error) => encode::<()>(Err(format!("no request: {error}"))),
    };
    answer.unwrap_or_default()
}

fn encode<T: Serialize>(answer: Result<T, String>) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&answer)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FileType, Mode};

    use super::*;

    /// Runs a helper in a thread of this process.
    fn helper() -> (Namespaces, std::thread::JoinHandle<()>) {
        let (own, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Namespaces::Helper(Arc::new(own)), std::thread::spawn(move || serve(theirs)))
    }

    fn moved() -> MovedInterface {
        MovedInterface {
            host: "cali-none".parse().unwrap(),
            mac: "02:00:00:00:00:01".parse().unwrap(),
            addrs: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            gateways: vec!["169.254.1.2".parse().unwrap()],
            prefixes: vec!["10.0.0.0/16".parse().unwrap()],
        }
    }

    /// Every request, for existing and missing namespaces.
    #[test]
    fn a_helper_answers_what_this_process_would_find() {
        let (helper, thread) = helper();
        let direct = Namespaces::Direct;
        let text = |all: io::Result<AddressUses>| all.map(|all| all.interfaces).map_err(|e| e.to_string());
        assert_eq!(text(helper.address_uses()), text(direct.address_uses()));
        // Opening it would wait for a writer.
        let pipe = std::env::temp_dir().join(format!("tortie-namespaces-{}", std::process::id()));
        let _ = std::fs::remove_file(&pipe);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        let all = ["/proc/thread-self/ns/net", "/nowhere", "/etc/passwd", "/dev/null", "/proc/self/ns/uts"];
        for path in all.into_iter().map(Path::new).chain([&*pipe]) {
            let text = |done: Result<MoveState, ContainerNetError>| done.map_err(|e| e.to_string());
            assert_eq!(
                text(helper.complete_moved(&moved(), path)),
                text(direct.complete_moved(&moved(), path))
            );
            let text = |done: Result<(), ContainerNetError>| done.map_err(|e| e.to_string());
            assert_eq!(text(helper.sweep_source_rules(path)), text(direct.sweep_source_rules(path)));
        }
        std::fs::remove_file(&pipe).unwrap();
        drop(helper);
        thread.join().unwrap();
    }

    /// Invalid requests, as a compromised process may send, and a helper that has ended.
    #[test]
    fn what_is_no_request_is_refused_and_ends_nothing() {
        let (helper, thread) = helper();
        let Namespaces::Helper(socket) = &helper else { panic!() };
        for octets in [&b"x"[..], b"{}", b"\"Reboot\"", b"{\"SweepSourceRules\":{}}", &[0xff; 4096]] {
            // Without a socket for the answer, and with a file in its place.
            send(socket, octets, SendFlags::NOSIGNAL).unwrap();
            let file = tempfile_like();
            let passed = [file.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&passed));
            sendmsg(socket, &[IoSlice::new(octets)], &mut control, SendFlags::NOSIGNAL).unwrap();
        }
        let wrong = Request::CompleteMoved {
            host: "a/b".to_owned(),
            mac: String::new(),
            addrs: vec![],
            gateways: vec![],
            prefixes: vec![],
            namespace: "/".into(),
        };
        assert!(
            ask::<MoveState>(socket, &wrong).unwrap_err().to_string().contains("no name of an interface")
        );
        assert!(helper.address_uses().is_ok(), "it goes on");

        let (own, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        drop(theirs);
        let gone = Namespaces::Helper(Arc::new(own));
        assert!(helper.has_helper() && !gone.has_helper() && !Namespaces::Direct.has_helper());
        let said = gone.address_uses().unwrap_err().to_string();
        assert!(said.contains("does not answer") && said.contains("restart the agent"), "{said}");
        assert!(gone.sweep_source_rules(Path::new("/")).is_err());
        let closed = Namespaces::Closed("no process".to_owned());
        assert_eq!(closed.complete_moved(&moved(), Path::new("/")).unwrap_err().to_string(), "no process");
        drop(helper);
        thread.join().unwrap();
    }

    /// A file that must not be written to.
    fn tempfile_like() -> std::fs::File {
        std::fs::File::open("/dev/null").unwrap()
    }
}
