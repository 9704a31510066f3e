//! `policy trace --live`: traces packets in the kernel and compares each with the policy evaluator's result.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::api::endpoints::trace_packet;
use crate::agent::api::server::Server;
use crate::agent::handle::{busy, stopping};
use crate::agent::policy_view::packet::{self, TraceResult};
use crate::agent::policy_view::trace;
use crate::api::policy::{LivePacket, LiveStep, LiveTrace, LiveTraceRequest};
use crate::api::status::ApiError;
use tortie_engine::policy::path::{self, HostPath, Path};
use tortie_engine::policy::{Decider, Globals, Verdict};
use tortie_kernel::{
    KernelView, Meaning, Mode, RuleView, Traced, TracedFlow, TracedPacket, TracedStep, TracedVerdict,
};

/// Maximum duration of a trace in seconds.
const DURATION_MAX: u64 = 60;

fn invalid(text: String) -> ApiError {
    ApiError { code: "invalid".to_owned(), text }
}

/// Traces packets in the kernel until the time is up or the caller disconnects.
pub(in crate::agent) async fn trace_packets(
    server: &Server,
    request: LiveTraceRequest,
) -> Result<LiveTrace, ApiError> {
    let LiveTraceRequest { packet, seconds } = request;
    if !(1..=DURATION_MAX).contains(&seconds) {
        return Err(invalid(format!("a trace takes 1 to {DURATION_MAX} seconds, not {seconds}")));
    }
    let armed = server.lock_tracing().ok_or_else(|| ApiError {
        code: "busy".to_owned(),
        text: format!(
            "another trace runs on this host: try again when it ends, in {DURATION_MAX} s at the latest"
        ),
    })?;
    let source_port = packet.sport;
    let (packet_query, found, globals) = trace_packet(server.handle(), packet).await?;
    let (ends, what) = packet_query.named(&found);
    let half = half_of(server.node(), &found)?;
    let flow = TracedFlow {
        src: half.flow.packet.src,
        dst: half.flow.packet.dst,
        protocol: half.flow.packet.protocol,
        source_port,
        destination_port: half.flow.packet.ports.map(|(_, port)| port),
        icmp: half.flow.packet.icmp,
    };
    server.handle().kernel().ask(may_trace).await??;
    // The caller's end closes when this request is answered or dropped.
    let (_caller, stop) = UnixStream::pair().map_err(|error| busy(&format!("no socket: {error}")))?;
    let work = move || {
        let traced = tortie_kernel::trace(&flow, Duration::from_secs(seconds), &stop);
        drop(armed);
        traced
    };
    let traced = tokio::task::spawn_blocking(work).await.map_err(|_| stopping())?;
    let traced = traced.map_err(|text| ApiError { code: "no-trace".to_owned(), text })?;
    let node = server.node().to_owned();
    let Traced { packets, lost } = traced;
    let packets: Vec<LivePacket> = server
        .handle()
        .kernel()
        .ask(move |view| {
            packets
                .iter()
                .map(|packet| compare_with_evaluator(view, &node, &globals, &half, packet))
                .collect()
        })
        .await?;
    let [from, to] = ends;
    let any = |word: &str| packets.iter().any(|packet| packet.result == word);
    let result = ["differs", "agrees", "changed", "established"].into_iter().find(|word| any(word));
    let denied = packets.iter().any(|packet| packet.verdict == trace::verdict_label(Verdict::Deny));
    let verdict = trace::verdict_label(if denied { Verdict::Deny } else { Verdict::Allow }).to_owned();
    Ok(LiveTrace {
        result: result.unwrap_or("none").to_owned(),
        verdict: (!packets.is_empty()).then_some(verdict),
        from,
        to,
        what,
        seconds,
        packets,
        lost,
    })
}

/// Returns this host's part of the path.
fn half_of(node: &str, found: &path::Trace) -> Result<HostPath, ApiError> {
    let here = found.host_paths.iter().find(|half| half.host == node && !half.outer);
    here.cloned().ok_or_else(|| {
        let mut hosts: Vec<&str> = found.host_paths.iter().map(|half| half.host.as_str()).collect();
        hosts.dedup();
        let hosts = hosts.join(" or ");
        invalid(format!("the packet does not pass through this host ({node}): trace it on {hosts}"))
    })
}

fn may_trace(view: &KernelView<'_>) -> Result<(), ApiError> {
    let no = |text: String| Err(ApiError { code: "no-trace".to_owned(), text });
    match (view.rules_mode(), view.rules_problem()) {
        (Mode::Program, None) => Ok(()),
        (Mode::Program, Some(problem)) => no(format!("nothing can be traced: {problem}")),
        _ => no("this agent writes no packet rules (--policy), so it cannot trace packets; without --live \
                 the answer comes from the store"
            .to_owned()),
    }
}

/// Compares a traced packet with the result of the evaluator under the current rules of the kernel thread.
fn compare_with_evaluator(
    view: &KernelView<'_>,
    node: &str,
    globals: &Arc<Globals>,
    half: &HostPath,
    packet: &TracedPacket,
) -> LivePacket {
    let mut half = half.clone();
    if let (Some((source, _)), Some(port)) = (&mut half.flow.packet.ports, packet.source_port) {
        *source = port;
    }
    let (_, path, _): TraceResult = packet::live(view, node, globals, &half);
    let views = packet.steps.iter().map(|step| step.place.and_then(|place| view.rule(&step.chain, place)));
    let views: Vec<Option<RuleView>> = views.collect();
    let observed = Observed::of(packet, &views);
    let (result, note) = observed.compare(&path);
    LivePacket {
        after_millis: u64::try_from(packet.after.as_millis()).unwrap_or(u64::MAX),
        sport: packet.source_port.filter(|_| half.flow.packet.ports.is_some()),
        verdict: trace::verdict_label(observed.verdict()).to_owned(),
        by: observed.by(),
        result: result.to_owned(),
        expected: trace::verdict_label(path.verdict).to_owned(),
        expected_by: trace::decided_by(&path),
        note,
        steps: packet.steps.iter().zip(&views).map(|(seen, view)| step(seen, view.as_ref())).collect(),
    }
}

/// Outcome of a traced packet, collected from its steps.
#[derive(Debug, Default)]
struct Observed {
    /// Description of the rule or chain that dropped the packet; `None` if the packet passed.
    dropped: Option<String>,
    /// True if the rule that dropped the packet belongs to another program.
    foreign: bool,
    /// Last policy decision.
    decider: Option<Decider>,
    established: bool,
    /// A rule of Tortie's table that no longer exists.
    gone: bool,
}

impl Observed {
    fn of(packet: &TracedPacket, views: &[Option<RuleView>]) -> Self {
        let mut observed = Self::default();
        for (step, view) in packet.steps.iter().zip(views) {
            let meaning = view.as_ref().map(|view| &view.meaning);
            match meaning {
                Some(Meaning::Decides(decider)) => observed.decider = Some(decider.clone()),
                Some(Meaning::Established) => observed.established = true,
                _ => {}
            }
            // A rule that another process added to Tortie's table does not count as one that is gone.
            let theirs = !step.ours || step.place.is_some_and(|place| !place.is_ours());
            observed.gone |= !theirs && step.handle.is_some() && view.is_none();
            if step.verdict == TracedVerdict::Drop {
                observed.foreign = theirs;
                observed.dropped = Some(match meaning {
                    Some(Meaning::Decides(decider)) => trace::decider(decider),
                    Some(Meaning::Drops(why)) => why.clone(),
                    _ => place(step),
                });
            }
        }
        observed
    }

    fn verdict(&self) -> Verdict {
        if self.dropped.is_some() { Verdict::Deny } else { Verdict::Allow }
    }

    fn by(&self) -> String {
        match (&self.dropped, &self.decider) {
            (Some(dropped), _) => dropped.clone(),
            (None, _) if self.established => "of a connection that was allowed when it began".to_owned(),
            (None, Some(decider)) => trace::decider(decider),
            (None, None) => "no rule of a policy".to_owned(),
        }
    }

    /// Returns `agrees`, `differs`, or the reason why no comparison is possible, with an explanation.
    fn compare(&self, path: &Path) -> (&'static str, String) {
        if self.gone {
            return ("changed", "a rule that it matched has changed since: trace again".to_owned());
        }
        if self.established && self.dropped.is_none() {
            return ("established", "only the first packet of a connection can be compared".to_owned());
        }
        match (self.verdict(), path.verdict) {
            (Verdict::Deny, Verdict::Allow) if self.foreign => {
                ("differs", "the rule that drops it is not Tortie's".to_owned())
            }
            (observed, wanted) if observed != wanted => ("differs", REPORT.to_owned()),
            (Verdict::Deny, _) if self.foreign => ("agrees", String::new()),
            _ => match (&self.decider, path.decider()) {
                (Some(observed), Some(wanted)) if observed != wanted => ("differs", REPORT.to_owned()),
                (None, Some(_)) => (
                    "differs",
                    "it did not reach that rule: no route, the reverse path filter, or no listener"
                        .to_owned(),
                ),
                _ => ("agrees", String::new()),
            },
        }
    }
}

const REPORT: &str =
    "`tortie diff` shows whether the kernel has the desired rules; if it does, please report this";

/// Describes the location of a step.
fn place(step: &TracedStep) -> String {
    match step.handle {
        Some(handle) => format!("table {}, chain {}, rule handle {handle}", step.table, step.chain),
        None => format!("table {}, chain {}, policy of the chain", step.table, step.chain),
    }
}

fn step(step: &TracedStep, view: Option<&RuleView>) -> LiveStep {
    let of = match (view.map(|view| &view.meaning), step.handle) {
        (Some(Meaning::Decides(decider)), _) => trace::decider(decider),
        (Some(Meaning::Passes(id, at)), _) => format!("{}, rule {at}", id.source),
        (Some(Meaning::Established), _) => "established connection".to_owned(),
        (Some(Meaning::Drops(why)), _) => why.clone(),
        (Some(Meaning::Frame), _) => String::new(),
        (None, Some(_)) if step.ours => match step.place {
            Some(place) if !place.is_ours() => "a rule that Tortie did not write".to_owned(),
            _ => "a rule that no longer exists".to_owned(),
        },
        (None, _) => String::new(),
    };
    LiveStep {
        table: step.table.clone(),
        chain: step.chain.clone(),
        rule: view.map(|view| view.at),
        handle: step.handle,
        of,
        text: view.map(|view| view.text.clone()).unwrap_or_default(),
        verdict: match &step.verdict {
            TracedVerdict::Accept => "accept".to_owned(),
            TracedVerdict::Drop => "drop".to_owned(),
            TracedVerdict::Continue => "continue".to_owned(),
            TracedVerdict::Return => "return".to_owned(),
            TracedVerdict::Jump(chain) => format!("jump {chain}"),
            TracedVerdict::Goto(chain) => format!("goto {chain}"),
            TracedVerdict::Other(number) => format!("verdict {number}"),
        },
    }
}
