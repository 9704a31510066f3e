//! An agent killed or stopped under traffic: no packet is lost, no route changes, and no correct state is
//! written again.

use std::time::{Duration, Instant};

use serde_json::Value;
use tortie_topology::{Signal, Victim};

use crate::interop::ping::Pinger;
use crate::interop::probe::{Monitor, Router, full_kernels, kernel, names, sessions};
use crate::interop::rig::{Backend, Net, delete, within};

/// Includes half a minute of waiting for a peer that sends no End-of-RIB.
const RECOVERY: Duration = Duration::from_secs(60);

/// Kills the agent with SIGKILL.
pub(crate) fn kill(net: &mut Net, router: Option<Router>) {
    under_traffic(net, router, "kill -9", |net| {
        assert!(net.running.kill("host1", Victim::Command).unwrap());
    });
}

/// Stops the agent with SIGTERM, a stop with graceful restart.
pub(crate) fn terminate(net: &mut Net, router: Option<Router>) {
    under_traffic(net, router, "SIGTERM", |net| {
        assert!(net.running.signal("host1", Victim::Command, Signal::TERM).unwrap());
        within(Duration::from_secs(10), Instant::now(), "the agent ends", || {
            match net.running.pid("host1") {
                Some(pid) => Err(format!("still process {pid}")),
                None => Ok(()),
            }
        });
    });
}

fn under_traffic(net: &mut Net, router: Option<Router>, what: &str, end: impl FnOnce(&mut Net)) {
    let before = sessions(net, "host1").unwrap();
    let hosts: Vec<Monitor> = net.hosts.iter().map(|host| Monitor::kernel(net, host)).collect();
    let tor = router.map(|router| router.watch(net, "tor"));
    let sweeps = swept(net);
    let begin = Instant::now();
    let pinger = Pinger::start(net, "web3", "10.244.1.1");
    pinger.wait(300);

    let ended = Instant::now();
    end(net);
    within(RECOVERY, ended, "the others notice", || {
        for host in &net.hosts[1..] {
            let peer = sessions(net, host)?.remove("172.30.0.1").ok_or("no session")?;
            if peer["state"] == "Established" {
                return Err(format!("{host} still has its session"));
            }
        }
        Ok(())
    });
    pinger.wait(300);
    let again = Instant::now();
    net.running.start("host1").unwrap();
    let (_, back) = within(RECOVERY, again, "the restart is over", || over(net, before.len()));
    // By this time the restarted agent would have written any unnecessary change.
    within(RECOVERY, again, "what is stale is swept", || match swept(net) {
        now if now > sweeps => Ok(()),
        now => Err(format!("{now} sweeps")),
    });
    pinger.wait(300);
    let pings = pinger.stop(begin);
    println!(
        "{router:?} {what}: back after {} ms; {} pings in {} ms, {} lost",
        back.as_millis(),
        pings.sent,
        pings.took.as_millis(),
        pings.lost.len()
    );
    let first = &pings.lost[..pings.lost.len().min(20)];
    assert!(pings.lost.is_empty(), "{what}: lost {} of {}, such as {first:?}", pings.lost.len(), pings.sent);
    // A rate far below a thousand requests per second would prove little; a busy machine sends fewer.
    assert!(pings.sent as f64 > pings.took.as_secs_f64() * 50.0, "{pings:?}");
    for monitor in &hosts {
        let seen = monitor.since(ended);
        assert!(seen.is_empty(), "{what}: the kernel of {} was written: {seen:#?}", monitor.node);
    }
    // The router has each block only from its owner, so any change is an error.
    let seen = tor.map(|tor| tor.since(ended)).unwrap_or_default();
    let moved = |line: &String| net.blocks.iter().any(|(_, block)| names(line, block));
    assert!(!seen.iter().any(moved), "{what}: the router saw {seen:#?}");
}

/// Counts how often the agent of host1 has removed stale routes at the end of a start.
fn swept(net: &Net) -> usize {
    net.log("host1").lines().filter(|line| line.contains("stale routes: ")).count()
}

/// Checks that sessions are up on both sides, tables are complete and nothing is stale.
fn over(net: &Net, count: usize) -> Result<(), String> {
    let mine = sessions(net, "host1")?;
    if mine.len() != count {
        return Err(format!("{} sessions of {count}", mine.len()));
    }
    if let Some(peer) = mine.values().find(|p| p["state"] != "Established") {
        return Err(peer.to_string());
    }
    let status = net.output("host1", &["tortie", "-o", "json", "status"])?;
    let status: Value = serde_json::from_slice(&status.stdout).map_err(|e| e.to_string())?;
    if status["routes"]["stale"] != 0 || status["bgp"]["gracefulRestart"] != "idle" || status["ready"] != true
    {
        return Err(status.to_string());
    }
    full_kernels(net)
}

/// Changes during an agent's downtime: its kernel keeps the old route until the agent is back, and no longer.
#[test]
fn what_went_meanwhile_is_swept() {
    let Some(mut net) = Net::file("mesh", Backend::Sqlite) else { return };
    within(RECOVERY, net.started, "every block in every kernel", || full_kernels(&net));
    let gone = net.blocks.iter().position(|(host, _)| host == "host3").unwrap();
    let (_, block) = net.blocks.remove(gone);
    assert!(net.running.kill("host1", Victim::Command).unwrap());
    let dashed = block.replace('/', "-");
    let commit = net.commit(vec![
        delete(&format!("/calico/ipam/v2/host/host3/ipv4/block/{dashed}")),
        delete(&format!("/calico/ipam/v2/assignment/ipv4/block/{dashed}")),
    ]);
    within(RECOVERY, commit.done, "host2 hears of it", || match kernel(&net, "host2")?.get(&block) {
        Some(line) => Err(line.clone()),
        None => Ok(()),
    });
    assert!(kernel(&net, "host1").unwrap().contains_key(&block), "nobody is there to take it out");
    let monitor = Monitor::kernel(&net, "host1");
    let again = Instant::now();
    net.running.start("host1").unwrap();
    let (_, took) =
        within(RECOVERY, again, "the stale route goes", || match kernel(&net, "host1")?.get(&block) {
            Some(line) => Err(line.clone()),
            None => full_kernels(&net),
        });
    println!("swept after {} ms", took.as_millis());
    let wrong: Vec<String> =
        monitor.since(again).into_iter().filter(|line| line.contains("10.244.2.0")).collect();
    assert!(wrong.is_empty(), "host2's block was right: {wrong:?}");
}
