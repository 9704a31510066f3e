//! Checks that every next step of a code is an existing command.

use clap::Parser;

use super::Cli;
use crate::api::codes::{ALL, Kind};

/// Returns a typical subject of this code.
fn subject(kind: Kind, name: &str) -> &'static str {
    match name {
        _ if kind == Kind::Cause => "Mesh_192_0_2_15",
        "peer-down" | "malformed-update" | "peer-configuration" | "prefix-limit" | "slow-peer" => {
            "Mesh_192_0_2_15"
        }
        "drift" => "routes",
        "duplicate-address" | "own-endpoint" | "unresolved" => "10.0.0.1",
        _ => "10.0.0.0/26",
    }
}

#[test]
fn every_next_step_is_a_command_that_there_is() {
    for (kind, list) in ALL {
        for code in list {
            let next = code.next(subject(kind, code.name));
            let command = next.split(", ").next().unwrap();
            let mut words = command.split_whitespace();
            match words.next() {
                Some("tortie") => {
                    let parsed = Cli::try_parse_from(std::iter::once("tortie").chain(words));
                    assert!(parsed.is_ok(), "{kind:?} {code}: `{command}`: {}", parsed.unwrap_err());
                }
                // Commands of every host with systemd and procps.
                Some("modprobe" | "sysctl" | "journalctl" | "timedatectl") => assert_eq!(kind, Kind::Problem),
                other => panic!("{kind:?} {code}: {other:?} is no command"),
            }
        }
    }
}
