//! `--dry-run` of `store put` and `store rm`: shows the changes on this host.

use std::fmt::Write as _;

use super::client::Client;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;
use crate::agent::OfflinePolicyView;
use crate::api::policy::{BgpDryRun, ChainChange, DryRun, DryRunRequest, RouteDifference};
use tortie_config::counted;

/// Source of the answer to a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum DryRunKind {
    /// Ask the agent: rules, BGP sessions and routes, and current connections that would be denied
    Dataplane,
    /// From the store alone: rules, and BGP without the routes that peers announce
    Store,
}

/// Prints the changes; nothing is written.
pub(super) async fn run(
    context: &Context,
    kind: DryRunKind,
    key: &str,
    value: Option<Vec<u8>>,
) -> Result<(), Failure> {
    let value = value.map(|bytes| {
        String::from_utf8(bytes)
            .map_err(|_| Failure::usage("the value is not text, so a dry run cannot parse it"))
    });
    let request = DryRunRequest { key: key.to_owned(), value: value.transpose()? };
    let globals = &context.globals;
    let answer: DryRun = match kind {
        DryRunKind::Dataplane => Client::of(globals).post("/v1/policy/dry-run", &request).await?,
        DryRunKind::Store => {
            let node = globals.node_name()?;
            let store = super::store::open(globals, false).await?;
            let view = OfflinePolicyView::load(&node, globals.data_model, &*store).await?;
            let tried = view.try_write(&request);
            tried.map_err(|error| Failure::new(Exit::Usage, &error.code, error.text))?
        }
    };
    output::print(globals.output, &answer, |out, _| render(out, &answer))
}

fn render(out: &mut String, answer: &DryRun) {
    let preview = answer.preview_of.as_ref();
    let preview = preview.map(|policy| format!("is never enforced itself; as {policy} it would act so"));
    let what = match (answer.delete, answer.revision) {
        _ if preview.is_some() => preview.unwrap_or_default(),
        (true, Some(revision)) => format!("would be deleted (rev {revision})"),
        (true, None) => "does not exist".to_owned(),
        (false, Some(revision)) => format!("would change (rev {revision})"),
        (false, None) => "would be new".to_owned(),
    };
    let _ = writeln!(out, "{} {what}", answer.key);
    let names = match answer.endpoints.as_slice() {
        [] => String::new(),
        names => format!(": {}", names.join(", ")),
    };
    let _ = writeln!(
        out,
        "  endpoints    {} of this host affected{names}",
        counted(answer.endpoints.len(), "endpoint")
    );
    for change in &answer.chains {
        lines(out, &format!("{} ({})", change.name, change.what), change);
    }
    for change in &answer.orders {
        lines(out, &format!("policy order of {}", change.name), change);
    }
    for set in &answer.sets {
        let _ = writeln!(
            out,
            "  set          {} ({}): +{} -{} members",
            set.selector, set.what, set.added, set.removed
        );
        for (mark, list, count) in [('+', &set.add, set.added), ('-', &set.remove, set.removed)] {
            let more = if count > list.len() { " ..." } else { "" };
            if !list.is_empty() {
                let _ = writeln!(out, "                 {mark} {}{more}", list.join(", "));
            }
        }
    }
    if answer.frame {
        let _ = writeln!(out, "  global       settings, pools or hosts that rules depend on");
    }
    if answer.endpoints.is_empty() && answer.chains.is_empty() && answer.sets.is_empty() && !answer.frame {
        let _ = writeln!(out, "  rules        no change");
    }
    if let Some(bgp) = &answer.bgp {
        render_bgp(out, bgp);
    }
    if let Some(connections) = &answer.connections {
        let _ = writeln!(
            out,
            "  connections  {} of {} tracked are allowed now and would be denied as new connections",
            connections.refused, connections.tracked
        );
        for line in &connections.first {
            let _ = writeln!(out, "                 {line}");
        }
    }
    for what in &answer.not_looked_at {
        let _ = writeln!(out, "  not looked at: {what}");
    }
    let _ = writeln!(out, "Nothing was written.");
}

fn render_bgp(out: &mut String, bgp: &BgpDryRun) {
    for (what, sessions) in [("come", &bgp.come), ("end", &bgp.end), ("are reset", &bgp.reset)] {
        if !sessions.is_empty() {
            let _ = writeln!(out, "  BGP          sessions that {what}: {}", sessions.join(", "));
        }
    }
    for peer in &bgp.peers {
        for (what, routes) in [("sent to", &peer.announced), ("used from", &peer.used)] {
            let RouteDifference { gained, lost, changed, gain, lose, change } = routes;
            if gained + lost + changed == 0 {
                continue;
            }
            let _ = writeln!(out, "  routes       {what} {}: +{gained} -{lost} ~{changed}", peer.session);
            for (mark, list, count) in [('+', gain, gained), ('-', lose, lost), ('~', change, changed)] {
                let more = if *count > list.len() { " ..." } else { "" };
                if !list.is_empty() {
                    let _ = writeln!(out, "                 {mark} {}{more}", list.join(", "));
                }
            }
        }
    }
    if *bgp == BgpDryRun::default() {
        let _ = writeln!(out, "  BGP          no change of sessions or routes");
    }
}

fn lines(out: &mut String, title: &str, change: &ChainChange) {
    let _ = writeln!(out, "  rules        {title}");
    for line in &change.lines {
        let _ = writeln!(out, "                 {line}");
    }
}
