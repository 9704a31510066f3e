//! `replay`: opens a BGP session with the project's own wire library, and sends the routes of an MRT file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tortie_bgp::wire::{
    Capabilities, ErrorCode, Families, Frame, MessageKind, Negotiated, Notification, Open, write_keepalive,
};
use tortie_bgp::{Family, RouterId};
use tortie_net::Cidr;

use super::file::MrtFile;
use super::player::{Plan, Played, Player};
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::{self, Format};

/// Limit for the connection, and for the peer's OPEN.
const PATIENCE: Duration = Duration::from_secs(10);
/// Local hold time in seconds.
const HOLD: u16 = 90;
/// Number of octets that are encoded before they are written.
const BATCH: usize = 64 * 1024;
/// Networks for loopback, documentation and benchmarks, which carry no real traffic.
const LAB: [&str; 7] = [
    "127.0.0.0/8",
    "::1/128",
    "192.0.2.0/24",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "198.18.0.0/15",
    "2001:db8::/32",
];

/// Next hops that replace a local loopback address.
const LOOPBACK_HOPS: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(192, 0, 2, 254), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x254));

/// Arguments of `tortie bgp mrt replay`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Replay {
    /// The file; `-` for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The router; any address other than loopback, documentation and benchmark addresses needs --yes
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = target)]
    to: SocketAddr,
    /// Our AS; the router has to expect it
    #[arg(long = "as", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    asn: u32,
    /// Our address [default: the kernel chooses]
    #[arg(long, value_name = "ADDR")]
    from: Option<IpAddr>,
    /// Our BGP identifier [default: our IPv4 address, else 192.0.2.254]
    #[arg(long, value_name = "A.B.C.D")]
    router_id: Option<Ipv4Addr>,
    /// As fast as the router reads, or with the pauses of the file
    #[arg(long, value_enum, default_value = "max")]
    speed: Speed,
    /// At most this many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Only the routes of this peer in the file [default: the first path of each prefix of a table, all
    /// updates]
    #[arg(long, value_name = "ADDR")]
    peer: Option<IpAddr>,
    /// Next hop of the routes of its family; once for IPv4 and once for IPv6 [default: our address; on loopback, where it
    /// could not be one, 192.0.2.254 and 2001:db8::254]
    #[arg(long, value_name = "ADDR", conflicts_with = "keep_next_hop")]
    next_hop: Vec<IpAddr>,
    /// Keep the next hops of the file
    #[arg(long)]
    keep_next_hop: bool,
    /// Keep the session for this many seconds after the last message [default: until ctrl-c]
    #[arg(long, value_name = "SECONDS")]
    hold: Option<u64>,
    /// Confirm a router that may carry traffic
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Speed {
    Original,
    Max,
}

fn target(text: &str) -> Result<SocketAddr, String> {
    text.parse().or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 179))).map_err(|_| {
        format!("`{text}` is neither ADDRESS nor ADDRESS:PORT: write 127.0.0.1:1790 or [::1]:1790")
    })
}

/// JSON answer of the command.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    target: String,
    peer_as: u32,
    records: u64,
    announced: u64,
    withdrawn: u64,
    skipped: u64,
    octets: u64,
    seconds: f64,
}

pub(super) async fn run(format: Format, replay: &Replay) -> Result<(), Failure> {
    check(replay)?;
    let mut file = MrtFile::open(&replay.file)?;
    let stream = connect(replay).await?;
    let local = stream.local_addr().map_err(|e| lost(&e))?.ip().to_canonical();
    let (reader, writer) = stream.into_split();
    let mut line = Line {
        reader,
        writer,
        pending: Vec::new(),
        wrote: Instant::now(),
        keepalive: Duration::ZERO,
        octets: 0,
    };
    let (ours, theirs) = line.open(replay, local).await?;
    let session = Negotiated::between(&ours, &theirs);
    if session.families.is_empty() {
        return Err(failed(
            "families",
            "the router carries neither IPv4 nor IPv6 unicast with us".to_owned(),
        ));
    }
    line.keepalive = Duration::from_secs(u64::from(ours.hold_time.min(theirs.hold_time)) / 3);
    eprintln!("established with AS {} at {}", theirs.asn, replay.to);
    let mut player = Player::new(plan(replay, session, local));
    let start = Instant::now();
    let stopped = line.play(replay, &mut file, &mut player).await?;
    let Played { records, announced, withdrawn, skipped } = player.played;
    let report = Report {
        target: replay.to.to_string(),
        peer_as: theirs.asn,
        records,
        announced,
        withdrawn,
        skipped,
        octets: line.octets,
        seconds: start.elapsed().as_secs_f64(),
    };
    output::print(format, &report, |out, _| {
        use std::fmt::Write as _;
        let _ = writeln!(
            out,
            "{announced} announced, {withdrawn} withdrawn, {skipped} skipped; {records} records in {:.2} s",
            report.seconds
        );
    })?;
    if !stopped {
        if replay.hold.is_none() {
            eprintln!("the session stays up; ctrl-c ends it");
        }
        line.stay(replay.hold.map(Duration::from_secs)).await?;
    }
    line.end().await;
    Ok(())
}

/// Rejects targets outside of lab networks, because old routes would harm a real network.
fn check(replay: &Replay) -> Result<(), Failure> {
    let lab = LAB.iter().filter_map(|c| c.parse::<Cidr>().ok()).any(|c| c.contains(replay.to.ip()));
    if lab || replay.yes {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Refused,
        "not-a-lab",
        format!(
            "{} may be a router that carries traffic: replay to a lab router on a loopback or documentation \
             address, or confirm with --yes",
            replay.to.ip()
        ),
    ))
}

fn plan(replay: &Replay, session: Negotiated, local: IpAddr) -> Plan {
    // BGP speakers reject a loopback address as next hop.
    let documented = [IpAddr::from(LOOPBACK_HOPS.0), IpAddr::from(LOOPBACK_HOPS.1)];
    let own = if local.is_loopback() { documented.to_vec() } else { vec![local] };
    let hops = || replay.next_hop.iter().map(IpAddr::to_canonical).chain(own.iter().copied());
    let mut v4 = hops().find(IpAddr::is_ipv4);
    let v6 = hops().find(IpAddr::is_ipv6);
    if session.ext_nexthop {
        // An IPv6 next hop for IPv4 routes (RFC 8950).
        v4 = v4.or(v6);
    }
    Plan {
        session,
        asn: replay.asn,
        next_hops: [v4, v6],
        keep_next_hop: replay.keep_next_hop,
        only: replay.peer,
    }
}

async fn connect(replay: &Replay) -> Result<TcpStream, Failure> {
    let socket = if replay.to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(|e| lost(&e))?;
    if let Some(from) = replay.from {
        let bound = socket.bind(SocketAddr::new(from, 0));
        bound.map_err(|e| Failure::usage(format!("--from {from} is no address of this machine: {e}")))?;
    }
    match tokio::time::timeout(PATIENCE, socket.connect(replay.to)).await {
        Ok(Ok(stream)) => {
            // Messages are written in large pieces, so Nagle's algorithm would only delay the last one.
            stream.set_nodelay(true).map_err(|e| lost(&e))?;
            Ok(stream)
        }
        Ok(Err(error)) => Err(Failure::new(
            Exit::Unreachable,
            "connect",
            format!("{} cannot be reached: {error}", replay.to),
        )),
        Err(_) => Err(Failure::new(Exit::TimedOut, "connect", format!("{} does not answer", replay.to))),
    }
}

fn failed(code: &str, text: String) -> Failure {
    Failure::new(Exit::Partial, code, text)
}

fn lost(error: &std::io::Error) -> Failure {
    failed("lost", format!("the session is lost: {error}"))
}

/// The BGP session with the target router.
struct Line {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    pending: Vec<u8>,
    wrote: Instant,
    keepalive: Duration,
    octets: u64,
}

impl Line {
    async fn open(&mut self, replay: &Replay, local: IpAddr) -> Result<(Open, Open), Failure> {
        let families: Families = Family::ALL.into_iter().collect();
        let capabilities = Capabilities {
            multiprotocol: true,
            families,
            as4: Some(replay.asn),
            route_refresh: true,
            extended_messages: true,
            ext_nexthop: true,
            ..Capabilities::default()
        };
        let router_id = replay.router_id.unwrap_or(match local {
            IpAddr::V4(a) => a,
            IpAddr::V6(_) => Ipv4Addr::new(192, 0, 2, 254),
        });
        let ours =
            Open { asn: replay.asn, hold_time: HOLD, router_id: RouterId(router_id.into()), capabilities };
        let mut out = Vec::new();
        ours.write(&mut out);
        self.write(&out).await?;
        let theirs = tokio::time::timeout(PATIENCE, async {
            let mut theirs = None;
            loop {
                match self.message().await? {
                    (MessageKind::Open, body) => {
                        theirs = Some(Open::decode(&body).map_err(|e| failed("open", e.to_string()))?);
                        let mut out = Vec::new();
                        write_keepalive(&mut out);
                        self.write(&out).await?;
                    }
                    (MessageKind::Keepalive, _) => {
                        if let Some(theirs) = theirs {
                            return Ok::<_, Failure>(theirs);
                        }
                    }
                    _ => {}
                }
            }
        });
        match theirs.await {
            Ok(theirs) => Ok((ours, theirs?)),
            Err(_) => Err(Failure::new(
                Exit::TimedOut,
                "open",
                "the router accepts the connection and sends nothing",
            )),
        }
    }

    /// Reads the next message; cancelling the call loses no data.
    async fn message(&mut self) -> Result<(MessageKind, Vec<u8>), Failure> {
        loop {
            let found = match Frame::next(&self.pending, true) {
                Ok(Some(frame)) => Some((frame.kind, frame.body.to_vec(), frame.len)),
                Ok(None) => None,
                Err(error) => {
                    return Err(failed("framing", format!("the router sends a malformed message: {error}")));
                }
            };
            if let Some((kind, body, len)) = found {
                self.pending.drain(..len);
                if kind == MessageKind::Notification {
                    let said = Notification::decode(&body);
                    return Err(failed("notification", format!("the router ended the session: {said}")));
                }
                return Ok((kind, body));
            }
            if self.reader.read_buf(&mut self.pending).await.map_err(|e| lost(&e))? == 0 {
                return Err(failed("closed", "the router closed the connection".to_owned()));
            }
        }
    }

    async fn write(&mut self, octets: &[u8]) -> Result<(), Failure> {
        self.writer.write_all(octets).await.map_err(|e| lost(&e))?;
        self.wrote = Instant::now();
        self.octets += octets.len() as u64;
        Ok(())
    }

    /// Writes all octets while reading. Returns `true` if a stop was requested.
    async fn send(&mut self, octets: &[u8]) -> Result<bool, Failure> {
        let mut at = 0;
        while let Some(rest) = octets.get(at..).filter(|r| !r.is_empty()) {
            let Self { reader, writer, pending, .. } = self;
            tokio::select! {
                wrote = writer.write(rest) => {
                    at += wrote.map_err(|e| lost(&e))?;
                }
                read = reader.read_buf(pending) => {
                    if read.map_err(|e| lost(&e))? == 0 {
                        return Err(failed("closed", "the router closed the connection".to_owned()));
                    }
                    self.look()?;
                }
                _ = tokio::signal::ctrl_c() => return Ok(true),
            }
        }
        self.wrote = Instant::now();
        self.octets += octets.len() as u64;
        Ok(false)
    }

    /// Discards received messages except NOTIFICATION, which is an error.
    fn look(&mut self) -> Result<(), Failure> {
        let mut done = 0;
        while let Some(rest) = self.pending.get(done..) {
            match Frame::next(rest, true) {
                Ok(Some(frame)) if frame.kind == MessageKind::Notification => {
                    let said = Notification::decode(frame.body);
                    return Err(failed("notification", format!("the router ended the session: {said}")));
                }
                Ok(Some(frame)) => done += frame.len,
                Ok(None) => break,
                Err(error) => {
                    return Err(failed("framing", format!("the router sends a malformed message: {error}")));
                }
            }
        }
        self.pending.drain(..done);
        Ok(())
    }

    /// Replays the whole file. Returns `true` if a stop was requested.
    async fn play(
        &mut self,
        replay: &Replay,
        file: &mut MrtFile,
        player: &mut Player,
    ) -> Result<bool, Failure> {
        let mut out = Vec::new();
        let mut first: Option<(Instant, u32)> = None;
        let mut reported_at = Instant::now();
        loop {
            if replay.limit.is_some_and(|limit| player.played.records >= limit) {
                break;
            }
            let next = file.next(|record| match record {
                Ok(record) => {
                    player.record(&record, &mut out);
                    Some(record.stamp.seconds)
                }
                Err(error) => {
                    player.played.skipped += 1;
                    eprintln!("tortie: {error}");
                    None
                }
            })?;
            let Some(seconds) = next else { break };
            if let (Speed::Original, Some(seconds)) = (replay.speed, seconds) {
                let (start, base) = *first.get_or_insert((Instant::now(), seconds));
                let due = start + Duration::from_secs(u64::from(seconds.saturating_sub(base)));
                if due > Instant::now() && self.wait(due).await? {
                    return Ok(true);
                }
            }
            let now = replay.speed == Speed::Original && !out.is_empty();
            if (now || out.len() >= BATCH) && self.send(&std::mem::take(&mut out)).await? {
                return Ok(true);
            }
            if reported_at.elapsed() >= Duration::from_secs(1) {
                reported_at = Instant::now();
                self.beat().await?;
                let Played { records, announced, .. } = player.played;
                if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
                    eprint!("\r\x1b[K{records} records, {announced} announced");
                }
            }
        }
        player.finish(&mut out);
        self.send(&out).await
    }

    async fn beat(&mut self) -> Result<(), Failure> {
        if !self.keepalive.is_zero() && self.wrote.elapsed() >= self.keepalive {
            let mut out = Vec::new();
            write_keepalive(&mut out);
            self.write(&out).await?;
        }
        Ok(())
    }

    /// Keeps the session alive until `until`. Returns `true` if a stop was requested.
    async fn wait(&mut self, until: Instant) -> Result<bool, Failure> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            tokio::select! {
                message = self.message() => drop(message?),
                () = tokio::time::sleep(left.min(Duration::from_secs(1))) => {}
                _ = tokio::signal::ctrl_c() => return Ok(true),
            }
            self.beat().await?;
        }
    }

    async fn stay(&mut self, time: Option<Duration>) -> Result<(), Failure> {
        let until = Instant::now() + time.unwrap_or(Duration::from_secs(365 * 86_400));
        self.wait(until).await.map(|_| ())
    }

    /// Ends the session with a Cease NOTIFICATION, Administrative Shutdown.
    async fn end(&mut self) {
        let mut out = Vec::new();
        Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, "the replay is over").write(&mut out);
        if self.write(&out).await.is_ok() {
            let _ = self.writer.shutdown().await;
        }
    }
}
