//! `tortie top`: a live screen of sessions and events, redrawn at each event.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use super::client::Client;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::monitor::{EventFollower, line};
use super::output;
use crate::api::bgp::Peer;
use crate::api::status::{Event, List, Status};
use crate::api::{escape, span, terminal};

/// Interval of redraws without events, because times and counters change.
const BEAT: Duration = Duration::from_secs(2);
/// Minimum pause between redraws.
const PAUSE: Duration = Duration::from_millis(250);
/// Switches to the terminal's alternate screen without cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Number of events that are kept for the screen.
const EVENTS: usize = 200;

/// Restores the terminal on drop.
struct Screen;

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = output::send(LEAVE);
    }
}

pub(super) async fn run(context: &Context) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() || terminal::is_dumb() {
        return Err(Failure::new(
            Exit::Usage,
            "no-terminal",
            "top draws on a terminal: use `tortie status`, or `tortie monitor -o json`",
        ));
    }
    let client = Client::of(&context.globals);
    let list: List<Event> = client.get("/v1/history?max=50").await?;
    let mut events: VecDeque<Event> = list.items.into();
    let mut stream = EventFollower::begin(&client, "").await?;
    output::send(ENTER)?;
    let _screen = Screen;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(|e| Failure::new(Exit::Partial, "signal", e.to_string()))?;
    loop {
        let status: Status = client.get("/v1/status").await?;
        let peers: List<Peer> = client.get("/v1/bgp/peers").await?;
        let (lines, columns) = size();
        let shown = screen(&status, &peers.items, events.make_contiguous(), lines, columns);
        let shown = escape::lines(&shown).replace('\n', "\x1b[K\r\n");
        output::send(&format!("\x1b[H{shown}\x1b[J"))?;
        let beat = tokio::time::sleep(BEAT);
        tokio::pin!(beat);
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            () = &mut beat => continue,
            message = stream.next() => if !read_event(&mut events, message) {
                return Err(Failure::new(Exit::Unreachable, "ended", "the agent ended the stream"));
            },
        }
        // Further events within the pause are drawn together with the first.
        let pause = tokio::time::sleep(PAUSE);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => return Ok(()),
                () = &mut pause => break,
                message = stream.next() => if !read_event(&mut events, message) { break },
            }
        }
    }
}

/// Keeps an event for the screen; `false` if the stream has ended.
fn read_event(events: &mut VecDeque<Event>, message: Option<crate::api::client::sse::SseEvent>) -> bool {
    let Some(message) = message else { return false };
    if let Ok(event) = serde_json::from_str(&message.data) {
        events.push_back(event);
        if events.len() > EVENTS {
            events.pop_front();
        }
    }
    true
}

/// Returns lines and columns of the terminal.
fn size() -> (usize, usize) {
    let asked = std::process::Command::new("stty").arg("size").stdin(std::process::Stdio::inherit()).output();
    let text = asked.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok()).filter(|n| *n > 0);
    (numbers.next().unwrap_or(24), numbers.next().unwrap_or(80))
}

/// Formats the screen: the verdict, sessions with those that are down first, and events with the newest last.
/// It never exceeds the given size.
fn screen(status: &Status, peers: &[Peer], events: &[Event], lines: usize, columns: usize) -> String {
    let mut rows: Vec<String> = vec![
        format!(
            "{}   tortie {}   up {}   {}: {}",
            status.node,
            status.version,
            span(status.uptime_seconds),
            status.verdict.to_uppercase(),
            status.summary
        ),
        format!(
            "BGP mesh {}/{} peers {}/{}   routes {} in kernel, {} pending, {} withheld, {} failed   store rev {}",
            status.bgp.mesh.up,
            status.bgp.mesh.of,
            status.bgp.peers.up,
            status.bgp.peers.of,
            status.routes.installed,
            status.routes.pending,
            status.routes.withheld,
            status.routes.failed,
            status.store.revision
        ),
    ];
    rows.extend(status.problems.iter().take(3).map(|p| format!("!  {}: {}   {}", p.subject, p.text, p.next)));
    rows.push(String::new());
    rows.push(format!(
        "{:<28} {:<12} {:<8} {:>7} {:>7}  {}",
        "PEER", "STATE", "UP/DOWN", "PFXACC", "PFXSNT", "REASON"
    ));
    let is_up = |peer: &&Peer| peer.state == "Established";
    let mut sorted: Vec<&Peer> = peers.iter().collect();
    sorted.sort_by_key(|peer| (is_up(peer), peer.name.clone()));
    // Sessions get at most half of the remaining lines.
    let room = (lines.saturating_sub(rows.len() + 3) / 2).max(1);
    for peer in sorted.iter().take(room) {
        let sum = |of: fn(&crate::api::bgp::PeerFamily) -> u64| peer.families.iter().map(of).sum::<u64>();
        let why = peer.last_error.as_ref().filter(|_| !is_up(peer)).map_or("", |error| error.text.as_str());
        rows.push(format!(
            "{:<28} {:<12} {:<8} {:>7} {:>7}  {why}",
            peer.name,
            peer.state,
            span(peer.state_seconds),
            sum(|f| f.accepted),
            sum(|f| f.advertised)
        ));
    }
    if sorted.len() > room {
        rows.push(format!("and {} more", sorted.len() - room));
    }
    rows.push(String::new());
    let room = lines.saturating_sub(rows.len() + 1);
    let newest = events.iter().skip(events.len().saturating_sub(room));
    rows.extend(newest.map(|event| line(event, false).trim_end().to_owned()));
    let cut = |row: &String| row.chars().take(columns).collect::<String>();
    rows.iter().take(lines).map(cut).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, state: &str) -> Peer {
        let value = serde_json::json!({
            "session": name, "address": "192.0.2.1", "port": 179, "name": name, "type": "global", "reason": "",
            "remoteAs": 64513, "state": state, "stateSince": "", "stateSeconds": 372, "flaps": 0,
            "lastError": {"code": "connect_failed", "text": "connection refused", "time": ""}, "families": [],
            "holdSeconds": 90, "keepaliveSeconds": 30, "routerId": null, "messagesIn": 0, "messagesOut": 0,
            "capabilities": [], "gracefulRestart": "idle", "bfd": null
        });
        serde_json::from_value(value).unwrap()
    }

    fn status() -> Status {
        let value = serde_json::json!({
            "apiVersion": "tortie/v1", "kind": "Status", "node": "host1", "version": "0.1.0", "time": "",
            "uptimeSeconds": 90, "ready": true, "verdict": "degraded", "summary": "1 of 2 BGP sessions up",
            "bgp": {"as": 64512, "routerId": "", "listen": [], "mesh": {"up": 0, "of": 0},
                    "peers": {"up": 1, "of": 2}, "gracefulRestart": "idle"},
            "routes": crate::api::status::RouteStatus::default(), "blocks": [],
            "store": {"store": "", "connected": true, "revision": 7, "lagSeconds": 0.0, "away": null,
                      "fromCache": false, "frozen": null, "invalid": [], "keys": 0},
            "dataplane": crate::api::status::DataplaneStatus::default(), "problems": [], "notes": []
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_screen_has_room_for_what_is_down_and_is_never_larger_than_the_terminal() {
        let mut peers: Vec<Peer> = (0..500).map(|n| peer(&format!("n{n:03}"), "Established")).collect();
        peers.push(peer("tor-a", "Active"));
        for (lines, columns) in [(24, 80), (5, 20), (60, 200)] {
            let text = screen(&status(), &peers, &[], lines, columns);
            let rows: Vec<&str> = text.split('\n').collect();
            assert!(rows.len() <= lines && rows.iter().all(|row| row.chars().count() <= columns), "{text}");
        }
        let text = screen(&status(), &peers, &[], 24, 100);
        let first = text.split('\n').position(|row| row.starts_with("tor-a")).unwrap();
        let up = text.split('\n').position(|row| row.starts_with("n000")).unwrap();
        assert!(
            first < up && text.contains("Active       6m12s") && text.contains("connection refused"),
            "{text}"
        );
    }
}
