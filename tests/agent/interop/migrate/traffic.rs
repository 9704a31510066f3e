//! Continuous traffic of both families, none of which may be lost.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::site::Site;
use crate::interop::ping::Pinger;
use crate::interop::rig;

/// A TCP connection that sends a number back and forth continuously.
struct Flow {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Duration)>,
}

impl Flow {
    fn start(site: &Site, from: &str, to: &str, address: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (server, client) = (site.net.running.netns(to).unwrap(), site.net.running.netns(from).unwrap());
        let (ready, listening) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            rig::enter(&server);
            let listener = std::net::TcpListener::bind("0.0.0.0:7000").unwrap();
            ready.send(()).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0u8; 8];
            while stream.read_exact(&mut buffer).is_ok() {
                let _ = stream.write_all(&buffer);
            }
        });
        listening.recv().unwrap();
        let (stopped, address) = (Arc::clone(&stop), format!("{address}:7000"));
        let thread = std::thread::spawn(move || {
            rig::enter(&client);
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let (mut number, mut worst) = (0u64, Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                let begin = Instant::now();
                stream.write_all(&number.to_be_bytes()).unwrap();
                let mut back = [0u8; 8];
                stream.read_exact(&mut back).unwrap();
                assert_eq!(u64::from_be_bytes(back), number);
                worst = worst.max(begin.elapsed());
                number += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            (number, worst)
        });
        Self { stop, thread }
    }

    /// Stops the connection; returns the number of round trips and the longest one.
    fn stop(self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the connection holds")
    }
}

/// Sender node and destination address.
pub(super) type Pairs = [(&'static str, &'static str)];
pub(super) const IPV4: &Pairs = &[("web1", "10.244.2.1"), ("web3", "10.244.1.1"), ("web2", "10.244.1.1")];
const IPV6: &Pairs = &[("web1", "fd00:10:244:2::1"), ("web3", "fd00:10:244:1::1")];

/// Runs `body` while packets are sent in both directions; none may be lost.
pub(super) fn under_traffic(site: &Site, body: impl FnOnce()) {
    under_traffic_of(site, &[IPV4, IPV6].concat(), body);
}

/// Runs `body` while packets are sent between these pairs only.
pub(super) fn under_traffic_of(site: &Site, pairs: &Pairs, body: impl FnOnce()) {
    let (zero, begin) = (site.net.started, Instant::now());
    let pingers: Vec<Pinger> = pairs.iter().map(|(from, to)| Pinger::start(&site.net, from, to)).collect();
    let flow = Flow::start(site, "web2", "web1", "10.244.1.1");
    pingers[0].wait(200);
    body();
    pingers[0].wait(500);
    let (round_trips, worst) = flow.stop();
    for (pinger, (from, to)) in pingers.into_iter().zip(pairs) {
        let pings = pinger.stop(zero);
        println!("{from} -> {to}: {} sent, {} lost in {:?}", pings.sent, pings.lost.len(), begin.elapsed());
        let lost = pings.lost.iter().zip(&pings.lost_at).collect::<Vec<_>>();
        assert!(lost.is_empty(), "{from} -> {to}: {} sent, lost {lost:?}", pings.sent);
    }
    println!("one TCP connection: {round_trips} round trips, the longest {worst:?}");
    assert!(round_trips > 20);
}
