//! Client of BIRD's control socket (BIRD 1.6 and 2; "Remote control" in its manual). It makes its session
//! read-only first, then sends `show` commands and parses the replies by their codes.
//!
//! A reply consists of lines `CCCC-text` and a last line `CCCC text`; a line that begins with a blank
//! continues the code before it. Codes from 8000 on are errors; 0000 and 0013 to 0017 end a reply without
//! data.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tortie_net::Cidr;

use crate::foreign::types::{Bird, BirdProtocol, BirdRoute};

/// Default paths of BIRD's sockets: in Calico's image, and in Debian's package.
pub const SOCKETS: [&str; 4] =
    ["/var/run/calico/bird.ctl", "/var/run/calico/bird6.ctl", "/run/bird/bird.ctl", "/run/bird/bird6.ctl"];

/// Maximum wait for the next octets of a reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for all replies of one BIRD; it sends a full table in a few seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum line length in octets; an AS path of 2,000 numbers takes 20,000.
const LONGEST: u64 = 1 << 20;

/// An error while reading BIRD's state.
#[derive(Debug, thiserror::Error)]
pub enum BirdError {
    /// The socket cannot be opened or read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// BIRD rejected a command (codes 8000 and 9000 on).
    #[error("BIRD answers `{0}`")]
    Refused(String),
    /// The process at the socket does not speak BIRD's protocol.
    #[error("not an answer of BIRD: `{0}`")]
    Malformed(String),
    /// The reply was not complete in time.
    #[error("the answer was not complete after {} s", LIMIT.as_secs())]
    Timeout,
}

/// Returns the given sockets, or the default paths of Calico and Debian if none is given.
#[must_use]
pub fn sockets(given: &[PathBuf]) -> Vec<PathBuf> {
    if given.is_empty() { SOCKETS.iter().map(PathBuf::from).collect() } else { given.to_vec() }
}

/// Reads the state of the BIRD behind each socket with `query`, which is [`query`] or [`read_state`]. Returns
/// the states and the errors; a path without a socket is neither.
pub fn query_each(
    sockets: &[PathBuf],
    query: fn(&Path) -> Result<Bird, BirdError>,
) -> (Vec<Bird>, Vec<String>) {
    let (mut birds, mut silent) = (Vec::new(), Vec::new());
    for socket in sockets {
        match query(socket) {
            Ok(bird) => birds.push(bird),
            Err(BirdError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => silent.push(format!("{}: {error}", socket.display())),
        }
    }
    (birds, silent)
}

/// Reads protocols and all routes of the BIRD behind a socket. Blocks for at most a minute.
///
/// # Errors
/// If no BIRD listens there, or it does not answer.
pub fn query(socket: &Path) -> Result<Bird, BirdError> {
    let (mut session, mut bird) = begin(socket)?;
    let mut reader = Routes::default();
    session.query("show route all", |code, text| reader.line(code, text))?;
    bird.routes = reader.list;
    Ok(bird)
}

/// Like [`query`], without the routes, which may be many.
///
/// # Errors
/// As [`query`].
pub fn read_state(socket: &Path) -> Result<Bird, BirdError> {
    Ok(begin(socket)?.1)
}

fn begin(socket: &Path) -> Result<(Session, Bird), BirdError> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut session = Session { stream: BufReader::new(stream), until: Instant::now() + LIMIT };
    session.answer(|_, _| ())?;
    let mut bird = Bird { socket: socket.display().to_string(), ..Bird::default() };
    session.query("restrict", |_, _| ())?;
    session.query("show status", |code, text| status(&mut bird, code, text))?;
    let mut reader = Protocols::default();
    session.query("show protocols all", |code, text| reader.line(code, text))?;
    bird.protocols = reader.list;
    Ok((session, bird))
}

struct Session {
    stream: BufReader<UnixStream>,
    until: Instant,
}

impl Session {
    fn query(&mut self, command: &str, each: impl FnMut(u16, &str)) -> Result<(), BirdError> {
        self.stream.get_mut().write_all(format!("{command}\n").as_bytes())?;
        self.answer(each)
    }

    /// Reads one reply and passes each line with its code to `each`.
    fn answer(&mut self, mut each: impl FnMut(u16, &str)) -> Result<(), BirdError> {
        let (mut code, mut line) = (0, Vec::new());
        loop {
            if Instant::now() > self.until {
                return Err(BirdError::Timeout);
            }
            line.clear();
            let read = std::io::Read::take(&mut self.stream, LONGEST).read_until(b'\n', &mut line)?;
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\n', '\r']);
            if read == 0 || !line.ends_with(b"\n") {
                return Err(BirdError::Malformed(text.chars().take(80).collect()));
            }
            match head(text) {
                Line::More(text) => each(code, text),
                Line::Part(now, text) => {
                    code = now;
                    each(code, text);
                }
                Line::Last(8_000.., text) => return Err(BirdError::Refused(text.to_owned())),
                Line::Last(now, text) => {
                    each(now, text);
                    return Ok(());
                }
                // Asynchronous log messages may arrive between the lines of a reply.
                Line::Aside => {}
                Line::Malformed => return Err(BirdError::Malformed(text.chars().take(80).collect())),
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    More(&'a str),
    Part(u16, &'a str),
    Last(u16, &'a str),
    Aside,
    Malformed,
}

fn head(line: &str) -> Line<'_> {
    if let Some(text) = line.strip_prefix(' ') {
        return Line::More(text);
    }
    if line.starts_with('+') {
        return Line::Aside;
    }
    let coded = line.split_at_checked(4).and_then(|(code, rest)| {
        let code = code.bytes().all(|b| b.is_ascii_digit()).then(|| code.parse::<u16>().ok())??;
        Some((code, rest))
    });
    match coded {
        Some((code, rest)) => match (rest.strip_prefix('-'), rest.strip_prefix(' ')) {
            (Some(text), _) => Line::Part(code, text),
            (_, Some(text)) => Line::Last(code, text),
            _ if rest.is_empty() => Line::Last(code, ""),
            _ => Line::Malformed,
        },
        None => Line::Malformed,
    }
}

/// Parses `show status`: 1000 is the version, 1011 a further line, 0024 a graceful restart recovery.
fn status(bird: &mut Bird, code: u16, text: &str) {
    if code == 1000 {
        text.trim_start_matches("BIRD").trim().clone_into(&mut bird.version);
    }
    if let Some(id) = text.trim().strip_prefix("Router ID is ") {
        bird.router_id = id.parse::<Ipv4Addr>().ok();
    }
    if code == 24 {
        let recovery = bird.recovery.get_or_insert_default();
        if let Some(timer) = text.trim().strip_prefix("Wait timer is ") {
            // BIRD 2 writes `234.602/240`; BIRD 1 omits the fraction.
            recovery.seconds = timer.split(['.', '/']).next().and_then(|seconds| seconds.parse().ok());
        }
    }
}

/// Parser of `show protocols all`: code 1002 is a row of the table, 1006 the details of that protocol.
#[derive(Debug, Default)]
struct Protocols {
    list: Vec<BirdProtocol>,
    /// True while the lines list the neighbor's capabilities and not the local ones (BIRD 2).
    of_neighbor: bool,
}

impl Protocols {
    fn line(&mut self, code: u16, text: &str) {
        match code {
            1002 => {
                let mut words = text.split_whitespace();
                let mut next = || words.next().unwrap_or_default().to_owned();
                let (name, proto, _table, state, since) = (next(), next(), next(), next(), next());
                let mut rest: Vec<&str> = words.collect();
                // An older time has its date in a column of its own.
                if since.len() == 10 && since.contains('-') && rest.first().is_some_and(|w| w.contains(':')) {
                    rest.remove(0);
                }
                let info = rest.join(" ");
                self.list.push(BirdProtocol { name, proto, state, info, ..BirdProtocol::default() });
                self.of_neighbor = false;
            }
            1006 => self.detail(text.trim()),
            _ => {}
        }
    }

    fn detail(&mut self, text: &str) {
        let Some(last) = self.list.last_mut() else { return };
        if let Some(channel) = text.strip_prefix("Channel ") {
            last.channels.push(channel.to_owned());
        }
        match text {
            "Neighbor graceful restart active" => last.neighbor_restarts = true,
            "Neighbor capabilities" => (self.of_neighbor, last.neighbor_keeps) = (true, Some(false)),
            "Graceful restart" if self.of_neighbor => last.neighbor_keeps = Some(true),
            _ => {}
        }
        let Some((name, value)) = text.split_once(':') else { return };
        let value = value.trim();
        match name {
            // A link-local neighbor is followed by `%` and its interface.
            "Neighbor address" => {
                last.neighbor = value.split('%').next().and_then(|addr| addr.parse().ok());
            }
            "Neighbor AS" => last.neighbor_as = value.parse().ok(),
            "Local AS" => last.local_as = value.parse().ok(),
            // BIRD 1 writes `restart-aware` or `restart-able`.
            "Neighbor caps" => {
                last.neighbor_keeps = Some(value.split(' ').any(|word| word.starts_with("restart-")));
            }
            "GR recovery" => last.awaited |= value.split(' ').any(|word| word == "pending"),
            _ => {}
        }
    }
}

/// Parser of `show route all`: a header line for each route, followed by lines that begin with a tab.
#[derive(Debug, Default)]
struct Routes {
    list: Vec<BirdRoute>,
    prefix: Option<Cidr>,
}

impl Routes {
    fn line(&mut self, code: u16, text: &str) {
        if !(1007..=1012).contains(&code) {
            return;
        }
        if let Some(detail) = text.strip_prefix('\t') {
            let next_hop = detail.trim().strip_prefix("BGP.next_hop:");
            if let (Some(value), Some(route)) = (next_hop, self.list.last_mut()) {
                // If a link-local address follows, the global address is the first.
                route.next_hop = value.split_whitespace().next().and_then(|addr| addr.parse().ok());
            }
            return;
        }
        let Some((words, rest)) = text.split_once('[') else { return };
        // Further routes for the same prefix leave the prefix column empty.
        if let Some(prefix) = words.split_whitespace().next().and_then(|word| word.parse::<Cidr>().ok()) {
            self.prefix = Some(prefix);
        } else if !words.starts_with(' ') {
            self.prefix = None;
        }
        let (Some(prefix), Some(from)) = (self.prefix, rest.split_whitespace().next()) else { return };
        let after = rest.split_once(']').map_or("", |(_, after)| after);
        self.list.push(BirdRoute {
            prefix,
            from: from.trim_end_matches(']').to_owned(),
            best: after.split_whitespace().any(|word| word == "*"),
            next_hop: None,
            unreachable: words.split_whitespace().any(|word| word == "unreachable"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::BirdRecovery;

    /// Output of BIRD 2.0.12 on its socket, and the same routes as BIRD 1.6 writes them (doc/reply_codes,
    /// nest/rt-table.c).
    const TWO: &str = "1007-Table master4:\n 0.0.0.0/0            unicast [kernel1 09:18:10.062] * (10)\n \tvia 172.30.0.2 on e1\n1008-\tType: inherit univ\n1012-\tKernel.source: 3\n \tKernel.metric: 0\n1007-10.244.1.0/26        blackhole [static1 09:18:10.061] * (200)\n1008-\tType: static univ\n1007-10.244.2.0/26        unicast [Mesh_172_30_0_2 09:18:11.343] * (100) [i]\n \tvia 172.30.0.2 on e1\n1008-\tType: BGP univ\n1012-\tBGP.origin: IGP\n \tBGP.as_path: \n \tBGP.next_hop: 172.30.0.2\n \tBGP.local_pref: 100\n1007-                     unreachable [Node_10_0_0_1 09:18:12 from 10.0.0.1] (100/-) [AS64601i]\n1008-\tType: BGP univ\n1012-\tBGP.next_hop: 10.0.0.9\n0000 \n";
    const ONE: &str = "1007-10.244.2.0/26      via 172.30.0.2 on eth0 [Mesh_172_30_0_2 2017-06-01] * (100/0) [i]\n1008-\tType: BGP unicast univ\n1012-\tBGP.origin: IGP\n \tBGP.next_hop: 172.30.0.2\n1007-10.244.1.0/26      blackhole [static1 2017-06-01] * (200)\n0000 \n";

    fn lines(text: &str, mut each: impl FnMut(u16, &str)) {
        let mut code = 0;
        for line in text.lines() {
            match head(line) {
                Line::More(text) => each(code, text),
                Line::Part(now, text) | Line::Last(now, text) => {
                    code = now;
                    each(code, text);
                }
                other => panic!("{other:?}: {line}"),
            }
        }
    }

    fn routes(text: &str) -> Vec<(String, String, bool, Option<String>, bool)> {
        let mut reader = Routes::default();
        lines(text, |code, text| reader.line(code, text));
        let row = |r: BirdRoute| {
            (r.prefix.to_string(), r.from, r.best, r.next_hop.map(|n| n.to_string()), r.unreachable)
        };
        reader.list.into_iter().map(row).collect()
    }

    #[test]
    fn routes_of_both_generations_are_read() {
        let row = |p: &str, from: &str, best, next: Option<&str>, un| {
            (p.to_owned(), from.to_owned(), best, next.map(str::to_owned), un)
        };
        assert_eq!(
            routes(TWO),
            [
                row("0.0.0.0/0", "kernel1", true, None, false),
                row("10.244.1.0/26", "static1", true, None, false),
                row("10.244.2.0/26", "Mesh_172_30_0_2", true, Some("172.30.0.2"), false),
                row("10.244.2.0/26", "Node_10_0_0_1", false, Some("10.0.0.9"), true),
            ]
        );
        let list = routes(ONE);
        assert_eq!(list[0], row("10.244.2.0/26", "Mesh_172_30_0_2", true, Some("172.30.0.2"), false));
        assert_eq!(list[1].1, "static1");
    }

    #[test]
    fn protocols_are_read_with_their_neighbors() {
        let text = "2002-Name       Proto      Table      State  Since         Info\n1002-device1    Device     ---        up     09:18:10.061  \n1006-\n1002-kernel1    Kernel     master4    up     09:18:10.061  \n1006-  Channel ipv4\n     State:          UP\n \n1002-Mesh_172_30_0_2 BGP        ---        up     09:18:11.019  Established   \n1006-  BGP state:          Established\n     Neighbor address: 172.30.0.2\n     Neighbor AS:      64512\n     Local AS:         64512\n   Channel ipv4\n1002-Node_10_0_0_9 BGP      master   start  2017-06-01 10:00:00  Active        Socket: Connection refused\n1006-  Neighbor address: 10.0.0.9\n0000 \n";
        let mut reader = Protocols::default();
        lines(text, |code, text| reader.line(code, text));
        let bird = Bird { protocols: reader.list, ..Bird::default() };
        let names: Vec<&str> = bird.protocols.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["device1", "kernel1", "Mesh_172_30_0_2", "Node_10_0_0_9"]);
        let mesh = &bird.protocols[2];
        assert!(mesh.is_established());
        assert_eq!(mesh.neighbor, Some("172.30.0.2".parse().unwrap()));
        assert_eq!((mesh.neighbor_as, mesh.local_as), (Some(64_512), Some(64_512)));
        let node = &bird.protocols[3];
        assert_eq!((node.state.as_str(), node.info.as_str()), ("start", "Active Socket: Connection refused"));
        assert!(bird.has_routes_of(true) && !bird.has_routes_of(false));
    }

    /// Output of BIRD 2.0.12 shortly after its start, and the same as Calico's BIRD 1.6 writes it
    /// (proto/bgp/bgp.c, nest/proto.c).
    #[test]
    fn restarts_that_are_under_way_are_read() {
        let read = |text: &str| {
            let mut bird = Bird::default();
            lines(text, |code, text| status(&mut bird, code, text));
            bird.recovery
        };
        let quiet =
            "1000-BIRD 2.0.12\n1011-Router ID is 10.9.0.1\n Hostname is vm\n0013 Daemon is up and running\n";
        assert_eq!(read(quiet), None);
        let two = quiet.replace("0013", "0024-Graceful restart recovery in progress\n   Waiting for 1 channels to recover\n   Wait timer is 234.602/240\n0013");
        assert_eq!(read(&two), Some(BirdRecovery { seconds: Some(234) }));
        let one = two.replace("channels", "protocols").replace("234.602", "51");
        assert_eq!(read(&one), Some(BirdRecovery { seconds: Some(51) }));

        let two = "1002-Mesh_2     BGP        ---        up     22:59:33.557  Established   \n1006-  BGP state:          Established\n     Neighbor address: 10.9.0.2\n     Neighbor graceful restart active\n     Local capabilities\n       Graceful restart\n         Restart time: 120\n     Neighbor capabilities\n       Multiprotocol\n         AF announced: ipv4\n       Graceful restart\n   Channel ipv4\n     State:          UP\n     GR recovery:   \n \n1002-Mesh_3     BGP        ---        up     22:59:33.557  Established   \n1006-  BGP state:          Established\n     Local capabilities\n       Graceful restart\n     Neighbor capabilities\n       Route refresh\n   Channel ipv4\n     GR recovery:   \n \n1002-Mesh_9     BGP        ---        start  22:59:32.707  Connect       Socket: No route to host\n1006-  BGP state:          Connect\n   Channel ipv4\n     State:          DOWN\n     GR recovery:    pending\n0000 \n";
        let one = "1002-Mesh_2     BGP        master   up     22:59:33  Established   \n1006-  Preference:     100\n   GR recovery:   \n   BGP state:          Established\n     Neighbor graceful restart active\n     Neighbor caps:    refresh restart-aware AS4\n1002-Mesh_3     BGP        master   up     22:59:33  Established   \n1006-  GR recovery:   \n   BGP state:          Established\n     Neighbor caps:    refresh AS4\n1002-Mesh_9     BGP        master   start  22:59:33  Connect       \n1006-  Preference:     100\n   GR recovery:    pending\n0000 \n";
        for text in [two, one] {
            let mut reader = Protocols::default();
            lines(text, |code, text| reader.line(code, text));
            let found: Vec<_> =
                reader.list.iter().map(|p| (p.neighbor_restarts, p.neighbor_keeps, p.awaited)).collect();
            assert_eq!(
                found,
                [(true, Some(true), false), (false, Some(false), false), (false, None, true)],
                "{text}"
            );
        }
    }

    #[test]
    fn codes_end_answers_and_strangers_are_known() {
        assert_eq!(head("0001 BIRD 2.0.12 ready."), Line::Last(1, "BIRD 2.0.12 ready."));
        assert_eq!(head("8003 No protocols match"), Line::Last(8_003, "No protocols match"));
        assert_eq!(head("1007-Table master4:"), Line::Part(1_007, "Table master4:"));
        assert_eq!(head(" \tvia"), Line::More("\tvia"));
        assert_eq!(head("+0013 log"), Line::Aside);
        for strange in ["", "HTTP/1.1 400", "12", "1007xTable", "９９９９-x"] {
            assert_eq!(head(strange), Line::Malformed, "{strange}");
        }
    }

    #[test]
    fn whoever_is_no_bird_is_an_error_and_no_hang() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.ctl");
        assert!(matches!(query(&path), Err(BirdError::Io(_))));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            for answer in ["SSH-2.0-x\n", "0001 BIRD ready\n9001 syntax error\n", "0001 BIRD"] {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                // The command is read before closing: unread data would reset the connection and lose the
                // reply.
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
            }
        });
        assert!(matches!(query(&path), Err(BirdError::Malformed(text)) if text.contains("SSH")));
        assert!(matches!(query(&path), Err(BirdError::Refused(text)) if text.contains("syntax")));
        assert!(matches!(query(&path), Err(BirdError::Malformed(_))));
        server.join().unwrap();
    }
}
