//! `tortie monitor`: prints events as they happen.

use std::fmt::Write as _;

use clap::ValueEnum;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::client::{Client, escape};
use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{self, Format};
use crate::api::client::sse::{SseEvent, SseReader};
use crate::api::status::Event;

/// Arguments of `tortie monitor`: filters of events.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Monitor {
    /// Only entries of this kind [default: all]
    #[arg(value_enum)]
    kind: Option<Kind>,
    #[command(flatten)]
    about: About,
}

/// Filters of events by their subject.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct About {
    /// Entries about this session: its name, the node's name or the address
    #[arg(long, value_name = "PEER")]
    peer: Option<String>,
    /// Entries about this prefix or address, prefixes within it and prefixes that cover it
    #[arg(long, value_name = "PREFIX|ADDRESS", value_parser = super::context::prefix_or_address)]
    prefix: Option<String>,
}

/// Kind of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// Sessions and UPDATEs of peers
    Bgp,
    /// Prefixes: originated, learned, in the kernel
    Route,
    /// Pools, blocks and affinities in the store
    Ipam,
    /// Policies, endpoints and packet rules
    Policy,
    /// Keys of the store
    Store,
    /// Requests to the kernel, and changes in it
    Kernel,
    /// The agent itself
    Agent,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bgp => "bgp",
            Self::Route => "route",
            Self::Ipam => "ipam",
            Self::Policy => "policy",
            Self::Store => "store",
            Self::Kernel => "kernel",
            Self::Agent => "agent",
        }
    }
}

impl About {
    /// Appends the filters as query parameters.
    pub(super) fn query(&self, out: &mut String) {
        for (name, value) in [("peer", &self.peer), ("prefix", &self.prefix)] {
            if let Some(value) = value {
                let _ = write!(out, "&{name}={}", escape(value));
            }
        }
    }
}

/// A stream of the agent's events.
#[derive(Debug)]
pub(super) struct EventFollower {
    body: Incoming,
    reader: SseReader,
    ready: std::collections::VecDeque<SseEvent>,
}

impl EventFollower {
    /// Opens the stream for this query.
    pub(super) async fn begin(client: &Client, query: &str) -> Result<Self, Failure> {
        let (_, body) = client.stream(&format!("/v1/events?{query}"), "content-type").await?;
        Ok(Self { body, reader: SseReader::default(), ready: std::collections::VecDeque::new() })
    }

    /// Returns the next event; `None` if the agent has ended the stream.
    pub(super) async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let frame = self.body.frame().await?.ok()?;
            if let Some(octets) = frame.data_ref() {
                self.ready.extend(self.reader.push(octets));
            }
        }
    }
}

pub(super) async fn run(context: &Context, command: &Monitor) -> Result<(), Failure> {
    let client = Client::of(&context.globals);
    let mut query = command.kind.map_or_else(String::new, |kind| format!("kinds={}", kind.as_str()));
    command.about.query(&mut query);
    let mut stream = EventFollower::begin(&client, &query).await?;
    let format = context.globals.output;
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            // Ctrl-C ends the command without an error.
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        let Some(event) = event else {
            let text = "the agent ended the stream: it is stopping, or this client was too slow";
            return Err(Failure::new(Exit::Unreachable, "ended", text));
        };
        if event.event == "reset" {
            eprintln!("tortie: entries are missing here: this client was too slow");
            continue;
        }
        output::write_out(&shown(format, &event.data)?)?;
    }
}

fn shown(format: Format, data: &str) -> Result<String, Failure> {
    if format == Format::Json {
        return Ok(format!("{data}\n"));
    }
    let event: Event = serde_json::from_str(data).map_err(|error| {
        Failure::new(Exit::Unreachable, "version-skew", format!("the agent's event cannot be read ({error})"))
    })?;
    match format {
        Format::Yaml => {
            let text = serde_yaml_ng::to_string(&event).unwrap_or_default();
            Ok(format!("---\n{text}"))
        }
        _ => Ok(line(&event, false)),
    }
}

/// Formats an event in one line, with the date if `day` is set.
pub(super) fn line(event: &Event, day: bool) -> String {
    let (date, time) = event.time.split_once('T').unwrap_or(("", &event.time));
    let date = if day { format!("{date} ") } else { String::new() };
    let change = if event.change == "c-0" { "-" } else { &event.change };
    let revision = if event.revision == 0 { String::new() } else { format!("   rev {}", event.revision) };
    format!(
        "{date}{time}  {change:<8}  {:<7}  {}  {}  {}{revision}\n",
        event.plane, event.mark, event.subject, event.text
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(change: &str, plane: &str, mark: &str, subject: &str, text: &str, revision: u64) -> Event {
        Event {
            seq: 1,
            time: "2026-11-20T14:11:02.114Z".to_owned(),
            change: change.to_owned(),
            plane: plane.to_owned(),
            mark: mark.to_owned(),
            subject: subject.to_owned(),
            text: text.to_owned(),
            revision,
            kinds: Vec::new(),
            peer: None,
            prefix: None,
        }
    }

    #[test]
    fn an_entry_is_a_line() {
        let pool = "/calico/v1/ipam/v4/pool/203.0.113.0-28";
        let written = event("c-7f31", "store", "+", pool, "written", 918_301);
        assert_eq!(
            line(&written, false),
            "14:11:02.114Z  c-7f31    store    +  /calico/v1/ipam/v4/pool/203.0.113.0-28  written   rev 918301\n"
        );
        let lost = event("c-0", "rib", "-", "Global_192_0_2_1", "Established -> Idle hold timer expired", 0);
        assert_eq!(
            line(&lost, true),
            "2026-11-20 14:11:02.114Z  -         rib      -  Global_192_0_2_1  Established -> Idle hold timer expired\n"
        );
    }

    #[test]
    fn json_is_one_object_a_line_as_it_came() {
        assert_eq!(shown(Format::Json, "{\"seq\":1}").unwrap(), "{\"seq\":1}\n");
        assert!(shown(Format::Table, "{}").is_err());
    }
}
