//! BGP graceful restarts in progress, as BIRD reports them: stopping BIRD during one loses routes.
//!
//! The peers of a restarting speaker retain its routes until it has sent all of them again. If the speaker
//! fails a second time before that, they delete the routes that it has not sent yet (RFC 4724 4.2). A BIRD
//! that was started with `-R` sends nothing until all its peers have sent their routes, or four minutes have
//! passed, so a peer that is down delays it. A neighbour that restarts loses the routes that it has not
//! received from this host yet if its session ends. BIRD waits for an absent neighbour during the restart
//! time that the neighbour announced, but an agent that has just started only waits until it removes its
//! stale routes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::daemons;
use super::report::Progress;
use crate::cli::failure::{Exit, Failure};
use crate::foreign::{Bird, bird};
use crate::host_checks::{CalicoDaemon, Restarts};

/// Interval of queries to BIRD.
const LOOK: Duration = Duration::from_millis(500);

impl Restarts {
    /// Queries each BIRD that runs here; `sockets` are its control sockets if they are not at the default
    /// paths. Blocks.
    pub(super) fn look(sockets: &[PathBuf], running: &[CalicoDaemon]) -> Self {
        if !has_bird(running) {
            return Self::default();
        }
        let sockets = bird::sockets(sockets);
        let (birds, mut silent) = bird::query_each(&sockets, bird::read_state);
        if birds.is_empty() && silent.is_empty() {
            let places: Vec<String> = sockets.iter().map(|socket| socket.display().to_string()).collect();
            silent.push(format!("there is no control socket of BIRD at {}", places.join(", ")));
        }
        let unseen = (!silent.is_empty()).then(|| silent.join("; "));
        Self { unseen, ..Self::of(&birds) }
    }

    /// Evaluates the state of all BIRDs; without I/O.
    fn of(birds: &[Bird]) -> Self {
        let mut all = Self::default();
        let mut say = |list: fn(&mut Self) -> &mut Vec<String>, text: String| {
            // Two paths may lead to the same socket.
            if !list(&mut all).contains(&text) {
                list(&mut all).push(text);
            }
        };
        for bird in birds {
            if let Some(recovery) = bird.recovery {
                let awaited: Vec<&str> =
                    bird.sessions().filter(|session| session.awaited).map(|s| s.name.as_str()).collect();
                let whom = if awaited.is_empty() { "its peers".to_owned() } else { awaited.join(", ") };
                let until = recovery.seconds.map(|n| format!(", for {n} s at most")).unwrap_or_default();
                say(
                    |all| &mut all.under_way,
                    format!("BIRD was started a short time ago and waits for {whom}{until}"),
                );
            }
            for session in bird.sessions() {
                if session.neighbor_restarts {
                    let where_ = if session.is_established() {
                        "has not sent all its routes yet"
                    } else {
                        "is not back yet"
                    };
                    say(|all| &mut all.under_way, format!("{} restarts and {where_}", session.name));
                }
                if session.neighbor_keeps == Some(false) {
                    say(|all| &mut all.forgetful, session.name.clone());
                }
            }
        }
        all
    }
}

fn has_bird(running: &[CalicoDaemon]) -> bool {
    running.iter().any(|daemon| daemon.role.starts_with("bird"))
}

/// Waits until no restart is in progress.
///
/// # Errors
/// If that takes too long.
pub(super) async fn over(sockets: &[PathBuf], wait: Duration, progress: &Progress) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut is_reported = false;
    loop {
        let now = Restarts::look(sockets, &daemons::find());
        if !is_reported && let Some(why) = &now.unseen {
            progress.say(&format!("       not looked at: whether BIRD or a peer restarts: {why}"));
        }
        if now.under_way.is_empty() {
            return Ok(());
        }
        let words = now.under_way.join("; ");
        if begin.elapsed() >= wait {
            let text = format!(
                "{words}. Ended now, BIRD's peers would drop the routes that restarts keep. BIRD was not ended after {} s: run \
                 adopt again when `birdc show status` and `birdc show protocols all` show no graceful restart, or with a \
                 longer --wait",
                wait.as_secs()
            );
            return Err(Failure::new(Exit::TimedOut, "restarting", text));
        }
        if !is_reported {
            progress.say(&format!("       waits: {words}"));
        }
        is_reported = true;
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{BirdProtocol, BirdRecovery};

    #[test]
    fn restarts_are_said_by_who_waits_for_whom() {
        let session = |name: &str, info: &str| BirdProtocol {
            name: name.to_owned(),
            proto: "BGP".to_owned(),
            info: info.to_owned(),
            neighbor_keeps: Some(true),
            ..BirdProtocol::default()
        };
        let quiet = Bird { protocols: vec![session("Mesh_2", "Established")], ..Bird::default() };
        assert_eq!(Restarts::of(std::slice::from_ref(&quiet)), Restarts::default());
        let bird = Bird {
            recovery: Some(BirdRecovery { seconds: Some(51) }),
            protocols: vec![
                BirdProtocol { neighbor_restarts: true, ..session("Mesh_2", "Established") },
                BirdProtocol { neighbor_restarts: true, ..session("Mesh_3", "Active") },
                BirdProtocol { neighbor_keeps: Some(false), ..session("Global_4", "Established") },
                BirdProtocol { awaited: true, neighbor_keeps: None, ..session("Mesh_9", "Connect") },
            ],
            ..Bird::default()
        };
        let found = Restarts::of(&[bird.clone(), bird]);
        assert_eq!(
            found.under_way,
            [
                "BIRD was started a short time ago and waits for Mesh_9, for 51 s at most",
                "Mesh_2 restarts and has not sent all its routes yet",
                "Mesh_3 restarts and is not back yet"
            ]
        );
        assert_eq!(found.forgetful, ["Global_4"]);
        assert_eq!(Restarts::look(&["/nowhere".into()], &[]), Restarts::default());
    }
}
