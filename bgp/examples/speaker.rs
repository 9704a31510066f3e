//! A minimal BGP daemon: one peer over TCP, one announced prefix, learned routes on standard output.
//!
//! ```text
//! cargo run -p tortie-bgp --example speaker -- 64512 192.0.2.1 64513 192.0.2.2:179 10.1.0.0/24
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the embedder has the clock and the socket"
)]

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tortie_bgp::{
    Cidr, ConnId, Event, GlobalConfig, HashKey, Input, NextHopState, Origination, PeerConfig, PeerId,
    PolicyHandle, RouterId, Speaker, Transmit,
};

/// Maximum sleep between two reads of the socket.
const NAP: Duration = Duration::from_millis(20);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [asn, id, peer_asn, peer, prefix] = arguments.as_slice() else {
        return Err("usage: speaker AS ROUTER-ID PEER-AS PEER-ADDRESS:PORT PREFIX".into());
    };
    let mut global = GlobalConfig::new(asn.parse()?, RouterId(u32::from(id.parse::<Ipv4Addr>()?)));
    global.hash_key = HashKey::random();
    let mut config = PeerConfig::new(peer.parse()?, peer_asn.parse()?);
    config.ebgp_policy = true;
    let prefix: Cidr = prefix.parse()?;

    let mut speaker = Speaker::new(global, PolicyHandle::accept_all(), Instant::now());
    speaker.handle(Input::Peer(PeerId(1), Box::new(config.clone())), Instant::now());
    speaker.handle(Input::Local(&[(prefix, Some(Origination::default()))]), Instant::now());
    speaker.handle(Input::LocalReady, Instant::now());
    drive(&mut speaker, config.remote)
}

/// Carries out the actions of the speaker in an endless loop.
fn drive(speaker: &mut Speaker, remote: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut connection: Option<(ConnId, TcpStream)> = None;
    let (mut next, mut output, mut best) = (0, Vec::new(), Vec::new());
    let mut buffer = vec![0; 65_536];
    loop {
        while let Some(event) = speaker.poll_event() {
            match event {
                Event::Dial(peer) => match TcpStream::connect_timeout(&remote, Duration::from_secs(5)) {
                    Ok(stream) => {
                        stream.set_nonblocking(true)?;
                        let (conn, local) = (ConnId(next), stream.local_addr()?);
                        next += 1;
                        connection = Some((conn, stream));
                        speaker.handle(Input::Dialled { peer, conn, local, remote }, Instant::now());
                    }
                    Err(e) => {
                        speaker.handle(Input::DialFailed { peer, error: e.to_string() }, Instant::now());
                    }
                },
                Event::Close(conn) => {
                    if let Some((_, mut stream)) = connection.take_if(|(c, _)| *c == conn) {
                        speaker.poll_transmit(conn, &mut output, 4096, Instant::now());
                        let _ = stream.write(&output);
                        output.clear();
                    }
                }
                Event::State { from, to, down, .. } => {
                    let why = down.map(|d| format!(": {}", d.text)).unwrap_or_default();
                    println!("{} -> {}{why}", from.as_str(), to.as_str());
                }
                // A daemon with a routing table would resolve the next hop there.
                Event::TrackNextHop(address) => {
                    let state = NextHopState::Reachable { metric: 0, on_link: true };
                    speaker.handle(Input::NextHop(address, state), Instant::now());
                }
                Event::BestChanged => {
                    while speaker.take_best(100, &mut best) {}
                    for change in best.drain(..) {
                        println!("{} {:?}", change.prefix, change.best.map(|b| b.next_hops));
                    }
                }
                _ => {}
            }
        }
        if let Some((conn, stream)) = &mut connection {
            let conn = *conn;
            while output.is_empty()
                && speaker.poll_transmit(conn, &mut output, 65_536, Instant::now()) == Transmit::More
            {
            }
            match stream.write(&output) {
                Ok(n) => drop(output.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => output.clear(),
            }
            let room = speaker.read_room(conn).min(buffer.len());
            match stream.read(buffer.get_mut(..room).unwrap_or_default()) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Ok(0) if room == 0 => {}
                Ok(n) if n > 0 => {
                    speaker.handle(Input::Data(conn, buffer.get(..n).unwrap_or_default()), Instant::now());
                }
                end => {
                    let why = end.err().map_or_else(|| "end of file".into(), |e| e.to_string());
                    connection = None;
                    output.clear();
                    speaker.handle(Input::Closed(conn, why), Instant::now());
                }
            }
        }
        let now = Instant::now();
        match speaker.poll_timeout() {
            Some(at) if at <= now => speaker.handle(Input::Tick, now),
            at => std::thread::sleep(at.map_or(NAP, |at| at - now).min(NAP)),
        }
    }
}
