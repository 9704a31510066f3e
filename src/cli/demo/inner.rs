//! The inner process of the demo: builds the network, runs the checks, and reports events to its parent.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tortie_topology::{Running, Signal, Victim};

use super::checks::{self, Check, Limits};
use super::network::{Network, ROUTER, Spec};
use super::probe;
use crate::cli::failure::Failure;

/// Events from the inner process to its parent, one JSON object per line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub(super) enum Event {
    /// A line of the timeline.
    Line {
        /// Seconds since the start.
        seconds: f64,
        /// Text of the line.
        text: String,
        /// Result, for steps that can fail.
        ok: Option<bool>,
    },
    /// A step begins.
    Waiting {
        /// The step that is under way.
        text: String,
    },
    /// A detail of the line before.
    Detail {
        /// Output of a kernel or the router.
        text: String,
    },
    /// All sockets exist, so the web page can be served.
    Up {
        /// Names of the hosts, and of the router if it is Tortie.
        nodes: Vec<String>,
    },
    /// Namespaces that must not exist after the end, by their names in `/proc/PID/ns`.
    Namespaces {
        /// Names such as `net:[4026532001]`.
        names: Vec<String>,
    },
    /// A check has finished.
    Check(Check),
    /// All checks have finished; the process stays until its standard input ends.
    Done,
    /// The network cannot be built.
    Failed {
        /// Exit code.
        exit: u8,
        /// Stable code, for programs.
        code: String,
        /// Text for people.
        text: String,
    },
}

/// A fault that the demo injects to show a failed check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Fault {
    /// Kill the router before its table is read
    RouterStopped,
    /// Delete a route while its agent is stopped and cannot repair it
    RouteDeleted,
}

pub(super) fn run(spec: Spec, breaking: Option<Fault>) -> Result<(), Failure> {
    match demo(spec, breaking) {
        Ok(net) => {
            send_event(&Event::Done);
            let mut rest = Vec::new();
            let _ = std::io::stdin().read_to_end(&mut rest);
            net.running.down().map_err(crate::cli::lab::failure)
        }
        Err(failure) => {
            send_event(&Event::Failed {
                exit: failure.exit as u8,
                code: failure.code.clone(),
                text: failure.text,
            });
            Ok(())
        }
    }
}

fn send_event(event: &Event) {
    let Ok(mut text) = serde_json::to_string(event) else { return };
    text.push('\n');
    let mut out = std::io::stdout().lock();
    // A write error is ignored: without its parent this process is killed.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn demo(spec: Spec, breaking: Option<Fault>) -> Result<Network, Failure> {
    if let Err(error) = tortie_topology::run::loopback_up() {
        return Err(Failure::new(
            crate::cli::Exit::Permission,
            "system",
            format!("loopback interface: {error}"),
        ));
    }
    let router = spec.router;
    let mut net = Network::up(spec, &mut |_| ())?;
    let begin = net.begin;
    let line = |text: String, ok: Option<bool>| {
        send_event(&Event::Line { seconds: begin.elapsed().as_secs_f64(), text, ok });
    };
    send_event(&Event::Namespaces { names: namespaces(&net) });
    let nodes: Vec<&str> = net.hosts.iter().map(|h| h.name.as_str()).chain([ROUTER]).collect();
    let at = net.linked.as_secs_f64();
    send_event(&Event::Line {
        seconds: at,
        text: format!("namespaces {} + links", nodes.join(" ")),
        ok: Some(true),
    });
    let seconds = net.started.duration_since(begin).as_secs_f64();
    let text = format!("agents started on host1-{}, one embedded store", net.hosts.len());
    send_event(&Event::Line { seconds, text, ok: Some(true) });
    match router.version(&net) {
        Ok(version) => line(format!("router: {version}"), Some(true)),
        Err(error) => line(format!("router: {error}"), Some(false)),
    }
    let mut sockets: Vec<String> = net.hosts.iter().map(|h| h.name.clone()).collect();
    if router == super::Router::Tortie {
        sockets.push(ROUTER.to_owned());
    }
    send_event(&Event::Up { nodes: sockets });

    let waiting = |text: &str| send_event(&Event::Waiting { text: text.to_owned() });

    let limits = Limits::default();
    let broken = Limits { start: Duration::from_secs(2), ..limits };
    let report = |text: &str, check: Check| {
        line(text.to_owned(), Some(check.ok));
        send_event(&Event::Check(check));
    };

    waiting("waiting for all BGP sessions to be Established");
    let check = checks::check("sessions_established", || checks::sessions_established(&net, &limits));
    let mesh = net.hosts.len() * (net.hosts.len() - 1) / 2;
    let families = if net.spec.v6 { 2 } else { 1 };
    let peers = net.hosts.len() * families;
    report(&format!("BGP: mesh {mesh}, router {peers} sessions Established"), check);

    if breaking == Some(Fault::RouteDeleted) {
        hold_and_delete(&mut net)?;
    }
    // Only the check that has to fail ends soon: the other one may take its time on a loaded machine.
    let start = |fault| if breaking == Some(fault) { &broken } else { &limits };
    waiting("waiting for each block in the kernel of each other host");
    let check = checks::check("blocks_in_every_kernel", || {
        checks::blocks_in_every_kernel(&net, start(Fault::RouteDeleted))
    });
    report("every block in every other kernel", check);
    show_kernel(&net);
    if breaking == Some(Fault::RouteDeleted) {
        let host = net.hosts.first().map(|h| h.name.clone()).unwrap_or_default();
        net.running.signal(&host, Victim::Command, Signal::CONT).map_err(crate::cli::lab::failure)?;
    }

    if breaking == Some(Fault::RouterStopped) {
        net.running.kill(ROUTER, Victim::Everything).map_err(crate::cli::lab::failure)?;
        line(format!("{} killed on purpose", router.name()), None);
    }
    waiting(&format!("waiting for each block in {}'s table", router.name()));
    let check =
        checks::check("blocks_in_router", || checks::blocks_in_router(&net, start(Fault::RouterStopped)));
    report(&format!("every block in {}'s table", router.name()), check);

    waiting("sending echo requests between all workloads");
    let check = checks::check("ping_between_workloads", || checks::ping_between_workloads(&net, &limits));
    report("ping between all workloads", check);
    if breaking.is_some() {
        line("broken on purpose: the other checks are left out".to_owned(), None);
        return Ok(net);
    }

    waiting("applying a policy that denies echo requests");
    let check = checks::check("policy_stops_ping", || super::policy::policy_stops_ping(&net, &limits));
    report("a policy denies a ping and is named; without it the ping passes", check);
    waiting("announcing a block and withdrawing it");
    let check = checks::check("withdraw_seen", || checks::withdraw_seen(&net, &limits));
    report("a block announced and withdrawn", check);
    waiting("killing the agent of host2 under 1,000 pings a second (4 s)");
    let check = checks::check("kill9_no_loss", || checks::kill9_no_loss(&mut net, &limits));
    report("agent of host2 killed (-9) under 1,000 pings a second: none lost", check);
    let last = net.hosts.len();
    waiting(&format!("taking the carrier of host{last} away for 200 ms"));
    let check = checks::check("link_flap_recovers", || checks::link_flap_recovers(&net, &limits));
    report(&format!("link of host{last} without carrier for 200 ms"), check);
    Ok(net)
}

/// Reports the routes that the first host's kernel has learned, in the format of `ip`.
fn show_kernel(net: &Network) {
    let Some(host) = net.hosts.first() else { return };
    let Ok(routes) = probe::routes(&net.running, &host.name, &[]) else { return };
    let router = super::network::ROUTER_V4.to_string();
    for route in routes.iter().filter(|r| r.kind.is_none() && r.is_ours()) {
        let mark = if route.gateway.as_ref() == Some(&router) { "  (router)" } else { "" };
        send_event(&Event::Detail { text: format!("{}: {route}{mark}", host.name) });
    }
}

fn hold_and_delete(net: &mut Network) -> Result<(), Failure> {
    let [host, other, ..] = net.hosts.as_slice() else { return Ok(()) };
    let (host, block) =
        (host.name.clone(), other.blocks.first().map(ToString::to_string).unwrap_or_default());
    let failed = |text: String| Failure::new(crate::cli::Exit::No, "break", text);
    // The route must exist before its removal can be noticed.
    let begin = Instant::now();
    probe::until(Duration::from_secs(10), || {
        match probe::routes(&net.running, &host, &[])?.iter().any(|r| r.dst == block) {
            false => Err(format!("{host} never had {block}")),
            true => Ok(()),
        }
    })
    .map_err(failed)?;
    net.running.signal(&host, Victim::Command, Signal::STOP).map_err(crate::cli::lab::failure)?;
    probe::run(&net.running, &host, &["ip", "route", "del", &block]).map_err(failed)?;
    let seconds = net.begin.elapsed().as_secs_f64();
    let text =
        format!("{host}: {block} deleted on purpose, its agent held ({} ms)", begin.elapsed().as_millis());
    send_event(&Event::Line { seconds, text, ok: None });
    Ok(())
}

/// Returns the namespaces of this process and of every node.
fn namespaces(net: &Network) -> Vec<String> {
    let mut dirs = vec!["/proc/self/ns".into()];
    let nodes = net.running.topology().nodes.iter();
    dirs.extend(nodes.filter_map(|n| ns_dir(&net.running, &n.name)));
    let mut names: Vec<String> = dirs
        .iter()
        .flat_map(|dir| ["net", "mnt", "pid", "uts", "ipc"].map(|kind| dir.join(kind)))
        .filter_map(|path| Some(std::fs::read_link(path).ok()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names.dedup();
    names
}

fn ns_dir(running: &Running, node: &str) -> Option<std::path::PathBuf> {
    running.netns(node).ok()?.parent().map(Into::into)
}
