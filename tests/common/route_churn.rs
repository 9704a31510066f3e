//! Another process with many routes: blackholes of protocol 50, written in netlink batches.

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test helper; not every test uses all of it"
)]

use std::time::{Duration, Instant};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;

pub(crate) struct RouteFlood {
    socket: Socket,
}

impl RouteFlood {
    pub(crate) fn new() -> Self {
        let mut socket = Socket::new(NETLINK_ROUTE).expect("netlink");
        socket.bind_auto().expect("port");
        socket.connect(&SocketAddr::new(0, 0)).expect("kernel");
        Self { socket }
    }

    /// Adds or deletes `count` /32 blackholes from 10.200.0.0.
    pub(crate) fn blackholes(&self, count: u32, add: bool) {
        for first in (0..count).step_by(512) {
            let mut buf = Vec::new();
            let last = (first + 512).min(count) - 1;
            for i in first..=last {
                message(&mut buf, 0x0ac8_0000 + i, add, i == last);
            }
            self.socket.send(&buf, 0).expect("sent");
            // The last answer is the acknowledgement; errors may precede it.
            loop {
                let mut answer = Vec::with_capacity(1 << 16);
                self.socket.recv(&mut answer, 0).expect("answer");
                if answer.len() >= 12 && answer[8..12] == (0x0ac8_0000 + last).to_ne_bytes() {
                    break;
                }
            }
        }
    }

    /// Makes this number of changes per second for a while, and ends with all `width` routes in the kernel.
    /// Returns the actual rate.
    pub(crate) fn churn(&self, per_second: u32, width: u32, time: Duration) -> f64 {
        let begin = Instant::now();
        let mut changes = 0u32;
        let mut add = true;
        while begin.elapsed() < time || add {
            self.blackholes(width, add);
            add = !add;
            changes += width;
            let due = Duration::from_secs_f64(f64::from(changes) / f64::from(per_second));
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
        f64::from(changes) / begin.elapsed().as_secs_f64()
    }
}

fn message(buf: &mut Vec<u8>, addr: u32, add: bool, ack: bool) {
    let (kind, flags) = if add { (RTM_NEWROUTE, 0x1 | 0x400 | 0x100) } else { (RTM_DELROUTE, 0x1) };
    let flags: u16 = flags | if ack { 4 } else { 0 };
    buf.extend_from_slice(&36u32.to_ne_bytes());
    buf.extend_from_slice(&kind.to_ne_bytes());
    buf.extend_from_slice(&flags.to_ne_bytes());
    buf.extend_from_slice(&addr.to_ne_bytes());
    buf.extend_from_slice(&0u32.to_ne_bytes());
    // rtmsg: AF_INET, /32, table main, protocol 50, blackhole.
    buf.extend_from_slice(&[2, 32, 0, 0, 254, 50, 0, 6, 0, 0, 0, 0]);
    buf.extend_from_slice(&8u16.to_ne_bytes());
    buf.extend_from_slice(&1u16.to_ne_bytes());
    buf.extend_from_slice(&addr.to_be_bytes());
}
