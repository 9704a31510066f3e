//! `tortie policy trace --live`: compares the kernel's verdicts on real packets with the expected ones.

use std::fmt::Write as _;
use std::time::Duration;

use super::client::Client;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;
use super::trace::end;
use crate::api::policy::{LivePacket, LiveStep, LiveTrace, LiveTraceRequest, TraceQuery};

pub(super) async fn run(context: &Context, packet: TraceQuery, seconds: u64) -> Result<(), Failure> {
    let client = Client::of(&context.globals);
    let request = LiveTraceRequest { packet, seconds };
    let takes = Duration::from_secs(seconds);
    let found: LiveTrace = client.post_and_wait("/v1/policy/live", &request, takes).await?;
    if found.result == "none" {
        let text = format!(
            "no packet {} -> {}, {}, came within {seconds} s. Is it sent, and does it pass this host? What the kernel \
             drops before packet rules (a wrong checksum) is not seen; --for SECONDS waits longer",
            found.from.address, found.to.address, found.what
        );
        // JSON output is printed as usual, in addition to the failure.
        output::print(context.globals.output, &found, |_, _| ())?;
        return Err(Failure::new(Exit::TimedOut, "timeout", text));
    }
    output::print(context.globals.output, &found, |out, _| render(out, &found))?;
    match (found.result.as_str(), found.verdict.as_deref()) {
        ("differs", _) => Err(Failure::new(Exit::No, "differs", "")),
        ("changed", _) => Err(Failure::new(Exit::Partial, "changed", "")),
        (_, Some("deny")) => Err(Failure::new(Exit::No, "denied", "")),
        _ => Ok(()),
    }
}

fn render(out: &mut String, found: &LiveTrace) {
    let _ = writeln!(
        out,
        "{}, {}   {} -> {}   {}, in this host's kernel",
        found.verdict.as_deref().unwrap_or_default().to_uppercase(),
        found.result,
        end(&found.from),
        end(&found.to),
        found.what
    );
    for packet in &found.packets {
        one(out, packet);
    }
    if found.lost {
        let _ = writeln!(out, "\nThe kernel sent more than could be read: steps are missing.");
    }
}

fn one(out: &mut String, packet: &LivePacket) {
    let (seconds, millis) = (packet.after_millis / 1_000, packet.after_millis % 1_000);
    let port = packet.sport.map_or_else(String::new, |port| format!("   from port {port}"));
    let _ = writeln!(out, "\n  after {seconds}.{millis:03} s{port}");
    let width = packet.steps.iter().map(|step| step.chain.chars().count()).max().unwrap_or_default();
    let mut table = "";
    for step in &packet.steps {
        if step.table != table {
            table = &step.table;
            let _ = writeln!(out, "    table {table}");
        }
        let number = match (step.rule, step.handle) {
            (Some(number), _) => format!("rule {number}"),
            (None, Some(handle)) => format!("handle {handle}"),
            (None, None) => "end".to_owned(),
        };
        let line = format!("      {:<width$}  {number:<10}  {:<9}  {}", step.chain, verb(step), words(step));
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let _ = writeln!(out, "    kernel     {:<5}  {}", packet.verdict, packet.by);
    let _ = writeln!(out, "    evaluator  {:<5}  {}", packet.expected, packet.expected_by);
    let note = if packet.note.is_empty() { String::new() } else { format!(": {}", packet.note) };
    let _ = writeln!(out, "    {}{note}", packet.result);
}

/// Returns the verdict without its target chain, which the next line shows.
fn verb(step: &LiveStep) -> &str {
    step.verdict.split(' ').next().unwrap_or_default()
}

fn words(step: &LiveStep) -> &str {
    if step.of.is_empty() { &step.text } else { &step.of }
}
