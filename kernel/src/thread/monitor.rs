//! The watch thread: receives notifications about links, addresses, routes, nexthops and permanent
//! neighbours and does nothing else, so that the socket's buffer is read while the kernel thread writes.
//!
//! Notifications of Tortie's own writes are filtered in the kernel by the port ID of the writing socket:
//! otherwise each of a hundred thousand routes would fill this buffer.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use netlink_sys::{Socket as Raw, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use socket2::{SockFilter, SockRef};

use super::messages::{EventsReady, ToKernel};
use crate::netlink::codec::{
    Messages, RTM_DELNEIGH, RTM_DELNEXTHOP, RTM_DELROUTE, RTM_NEWNEIGH, RTM_NEWNEXTHOP, RTM_NEWROUTE,
};
use crate::netlink::event::{self, Event};
use crate::netlink::route::TABLE_MAIN;
use crate::netlink::socket::grow_recv_buffer;

/// RTNLGRP_LINK, RTNLGRP_NEIGH, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR,
/// RTNLGRP_IPV6_ROUTE and RTNLGRP_NEXTHOP.
const GROUPS: [u32; 7] = [1, 3, 5, 7, 9, 11, 32];
/// Maximum number of waiting events; beyond it they are discarded in favour of a resync.
const QUEUE_MAX: usize = 65_536;

/// Queue of events from the watch thread to the kernel thread.
#[derive(Debug, Default)]
pub(crate) struct EventQueue(Mutex<QueuedEvents>);

#[derive(Debug, Default)]
struct QueuedEvents {
    events: Vec<Event>,
    overruns: u64,
}

impl EventQueue {
    /// Takes all waiting events, and the number of losses before them.
    pub(crate) fn take(&self) -> (Vec<Event>, u64) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut waiting.events), std::mem::take(&mut waiting.overruns))
    }

    /// Appends events; returns true if the queue was empty.
    fn put(&self, events: &mut Vec<Event>, overruns: u64) -> bool {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = waiting.events.is_empty() && waiting.overruns == 0;
        waiting.overruns += overruns;
        if waiting.overruns > 0 {
            // The resync after the loss will cover these events.
            waiting.events = Vec::new();
            events.clear();
        } else if waiting.events.len() + events.len() > QUEUE_MAX {
            waiting.events = Vec::new();
            waiting.overruns = 1;
            events.clear();
        } else {
            waiting.events.append(events);
        }
        was_empty
    }
}

/// Received events that are not in the queue yet.
///
/// When a socket overflows, the kernel reports it once and drops all further notifications until the socket
/// was read empty. A dump made earlier would miss the notifications dropped after it, so the loss is reported
/// only when the socket is empty.
#[derive(Debug, Default)]
struct Monitor {
    events: Vec<Event>,
    overruns: u64,
    /// Losses reported by the kernel since the socket was last empty.
    pending_overruns: u64,
}

impl Monitor {
    fn messages(&mut self, buf: &[u8], own_port: u32) {
        // The resync after the loss will cover these events.
        if self.pending_overruns == 0 {
            self.events.extend(
                Messages(buf)
                    .filter(|m| m.pid != own_port || !is_echoed(m.kind))
                    .filter_map(|m| event::decode(&m)),
            );
        }
    }

    fn lost(&mut self) {
        self.pending_overruns += 1;
        self.events.clear();
    }

    fn empty(&mut self) {
        self.overruns += std::mem::take(&mut self.pending_overruns);
    }

    fn is_relevant(&self) -> bool {
        !self.events.is_empty() || self.overruns > 0
    }
}

/// The notification socket, before its thread starts.
pub(crate) struct MonitorThread {
    raw: Raw,
    own_port: u32,
    event_queue: Arc<EventQueue>,
    stop: Arc<OwnedFd>,
}

impl MonitorThread {
    /// Subscribes; from now on every loss is detected.
    pub(crate) fn open(own_port: u32, buffer: usize, event_queue: Arc<EventQueue>) -> io::Result<Self> {
        let mut raw = Raw::new(NETLINK_ROUTE)?;
        raw.bind_auto()?;
        raw.connect(&SocketAddr::new(0, 0))?;
        raw.set_non_blocking(true)?;
        grow_recv_buffer(&raw, buffer)?;
        // If the filter is refused (by a sandbox), the code below drops the same messages.
        let _ = SockRef::from(&raw).attach_filter(&echo_filter(own_port));
        for group in GROUPS {
            // Old kernels have no nexthop group.
            let joined = raw.add_membership(group);
            if group != 32 {
                joined?;
            }
        }
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        Ok(Self { raw, own_port, event_queue, stop })
    }

    /// Returns the file descriptor that stops the thread: an eventfd, written with a non-zero number.
    pub(crate) fn stop(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.stop)
    }

    /// Runs until stopped or until the kernel thread is gone.
    pub(crate) fn run(self, wake: &SyncSender<ToKernel>) -> io::Result<()> {
        let mut buf = Vec::with_capacity(64 << 10);
        let mut monitor = Monitor::default();
        loop {
            let mut fds = [
                PollFd::new(&self.raw, PollFlags::IN),
                PollFd::from_borrowed_fd(std::os::fd::AsFd::as_fd(&*self.stop), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            if fds.iter().skip(1).any(|fd| !fd.revents().is_empty()) {
                return Ok(());
            }
            // Bounded, so that the kernel thread gets the events in time during a flood.
            for _ in 0..1024 {
                buf.clear();
                match self.raw.recv(&mut buf, 0) {
                    Ok(_) => monitor.messages(&buf, self.own_port),
                    Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => monitor.lost(),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        monitor.empty();
                        break;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            if monitor.is_relevant()
                && self.event_queue.put(&mut monitor.events, std::mem::take(&mut monitor.overruns))
            {
                // A full channel wakes the kernel thread as well: it empties the queue after each message.
                if let Err(TrySendError::Disconnected(_)) = wake.try_send(ToKernel::Events(EventsReady(()))) {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns true for messages whose notifications are dropped if this process sent them.
fn is_echoed(kind: u16) -> bool {
    let routes = matches!(kind, RTM_NEWROUTE | RTM_DELROUTE | RTM_NEWNEXTHOP | RTM_DELNEXTHOP);
    routes || matches!(kind, RTM_NEWNEIGH | RTM_DELNEIGH)
}

/// Returns a classic BPF filter that drops routes of tables other than main, neighbours that are not
/// permanent, and routes, nexthops and neighbours written by `own_port`. BPF loads convert from network byte
/// order, so the constants are swapped on little-endian machines.
fn echo_filter(own_port: u32) -> [SockFilter; 15] {
    const LDB: u16 = 0x30;
    const LDH: u16 = 0x28;
    const LDW: u16 = 0x20;
    const JEQ: u16 = 0x15;
    const JSET: u16 = 0x45;
    const RET: u16 = 0x06;
    const NUD_PERMANENT: u32 = 0x80;
    // The octet of `ndm_state` with that bit.
    const STATE: u32 = if cfg!(target_endian = "little") { 24 } else { 25 };
    let kind = |k: u16| u32::from(k.to_be());
    [
        SockFilter::new(LDH, 0, 0, 4),                     // 0: nlmsg_type
        SockFilter::new(JEQ, 7, 0, kind(RTM_NEWROUTE)),    // 1: -> 9
        SockFilter::new(JEQ, 6, 0, kind(RTM_DELROUTE)),    // 2: -> 9
        SockFilter::new(JEQ, 7, 0, kind(RTM_NEWNEXTHOP)),  // 3: -> 11
        SockFilter::new(JEQ, 6, 0, kind(RTM_DELNEXTHOP)),  // 4: -> 11
        SockFilter::new(JEQ, 5, 0, kind(RTM_DELNEIGH)),    // 5: -> 11
        SockFilter::new(JEQ, 0, 7, kind(RTM_NEWNEIGH)),    // 6: else -> 14
        SockFilter::new(LDB, 0, 0, STATE),                 // 7: ndm_state
        SockFilter::new(JSET, 2, 4, NUD_PERMANENT),        // 8: permanent -> 11, else -> 13
        SockFilter::new(LDB, 0, 0, 20),                    // 9: rtm_table
        SockFilter::new(JEQ, 0, 2, u32::from(TABLE_MAIN)), // 10: main -> 11, else -> 13
        SockFilter::new(LDW, 0, 0, 12),                    // 11: nlmsg_pid
        SockFilter::new(JEQ, 0, 1, own_port.to_be()),      // 12: own port -> 13, else -> 14
        SockFilter::new(RET, 0, 0, 0),                     // 13: drop
        SockFilter::new(RET, 0, 0, u32::MAX),              // 14: accept
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::codec::RTM_DELLINK;
    use crate::netlink::link::Link;

    fn event() -> Event {
        Event::LinkGone(Link { index: 1, name: "lo".into(), flags: 0, mtu: 65_536, is_bridge: false })
    }

    #[test]
    fn too_many_waiting_events_become_an_overrun() {
        let event_queue = EventQueue::default();
        assert!(event_queue.put(&mut vec![event(); QUEUE_MAX], 0));
        assert!(!event_queue.put(&mut vec![event()], 0));
        assert_eq!(event_queue.take(), (vec![], 1));
        assert!(event_queue.put(&mut vec![event()], 0));
        assert_eq!(event_queue.take(), (vec![event()], 0));
    }

    #[test]
    fn events_behind_an_overrun_are_left_to_the_dump() {
        let event_queue = EventQueue::default();
        event_queue.put(&mut vec![event()], 0);
        event_queue.put(&mut vec![event()], 2);
        event_queue.put(&mut vec![event()], 0);
        assert_eq!(event_queue.take(), (vec![], 2));
    }

    /// A link removal, as the kernel sends it.
    fn link_gone() -> Vec<u8> {
        let mut buf = Vec::new();
        // 16 bytes of header, 16 of `struct ifinfomsg`, the name.
        buf.extend_from_slice(&40u32.to_ne_bytes());
        buf.extend_from_slice(&RTM_DELLINK.to_ne_bytes());
        buf.extend_from_slice(&[0; 10]);
        buf.extend_from_slice(&[0, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        buf.extend_from_slice(&8u16.to_ne_bytes());
        buf.extend_from_slice(&3u16.to_ne_bytes());
        buf.extend_from_slice(b"eth\0");
        buf
    }

    #[test]
    fn a_loss_is_reported_when_the_socket_is_empty_because_until_then_more_is_lost() {
        let mut monitor = Monitor::default();
        monitor.messages(&link_gone(), 1);
        assert_eq!(monitor.events.len(), 1);
        monitor.lost();
        assert!(!monitor.is_relevant(), "a dump now would miss what is dropped after it");
        monitor.messages(&link_gone(), 1);
        assert!(!monitor.is_relevant());
        monitor.empty();
        assert_eq!((monitor.events.len(), monitor.overruns, monitor.is_relevant()), (0, 1, true));
        monitor.overruns = 0;
        monitor.messages(&link_gone(), 1);
        monitor.empty();
        assert_eq!((monitor.events.len(), monitor.overruns), (1, 0));
    }
}
