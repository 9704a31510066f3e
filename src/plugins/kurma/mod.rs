//! The network plugin of Kurma: `/opt/network/setup`, `add` and `del` of its container are this one
//! executable.
//!
//! It implements the contract of Kurma's network document, for both generations of its daemon. It does not
//! select addresses (ipam) or create interfaces (attach), and no process runs between calls.
//!
//! ```text
//!  argv, stdin --config.rs--> Settings --host.rs--> store, socket (configured, on the host, in a volume)
//!     setup --> setup.rs: a read, a write, repairs          add, del --> calls.rs --> ipam, attach
//!  stdout: one object after a successful add, otherwise nothing
//!  stderr: one line after a failure, otherwise nothing
//! ```
//!
//! The daemon reads stdout and stderr as one pipe and parses all of it after a successful `add`, so not even
//! a warning may be printed. The daemon kills a call after 60 seconds; the call ends itself before that, and
//! undoes its steps in order.

mod calls;
mod config;
mod container;
mod deadline;
mod error;
mod host;
mod setup;
mod verb;

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Instant;

use self::container::container;
use self::deadline::{LIMIT, within};
use tortie_store::StoreOptions;

pub use self::error::KurmaError;
pub use self::verb::Verb;

/// Maximum size of a configuration in octets.
const INPUT_MAX: u64 = 1 << 20;

/// Executes a verb as the daemon calls it: configuration on stdin, result on stdout.
#[must_use]
pub fn run(verb: Verb, args: &[String]) -> ExitCode {
    let written = match on_stdin(verb, args, None) {
        Ok(Some(answer)) => {
            let mut stdout = std::io::stdout().lock();
            writeln!(stdout, "{answer}").and_then(|()| stdout.flush()).map_err(|e| e.to_string())
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("tortie {}: {}", verb.as_str(), why.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

/// Executes one call with the configuration on stdin, and returns the result of `add`.
///
/// # Errors
/// If the call fails; all its steps are undone.
pub fn on_stdin(
    verb: Verb,
    args: &[String],
    store: Option<StoreOptions>,
) -> Result<Option<String>, KurmaError> {
    call_on(store, verb, args, &input()?)
}

/// Executes one call, and returns the result of `add`.
///
/// # Errors
/// If the call fails; all its steps are undone.
pub fn call(verb: Verb, args: &[String], input: &[u8]) -> Result<Option<String>, KurmaError> {
    call_on(None, verb, args, input)
}

/// Executes one call with the store of the caller; `None` uses the store of the configuration.
fn call_on(
    store: Option<StoreOptions>,
    verb: Verb,
    args: &[String],
    input: &[u8],
) -> Result<Option<String>, KurmaError> {
    let container = match verb {
        Verb::Setup | Verb::SetupWait => None,
        Verb::Add | Verb::Del => Some(container(args)?),
    };
    let Some(mut settings) = config::read(input, verb)? else { return Ok(None) };
    settings.store = store;
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| KurmaError(format!("no event loop: {error}")))?;
    let answer = runtime.block_on(async {
        match (verb, container) {
            (Verb::Add, Some(container)) => {
                calls::add(&settings, container, began + LIMIT).await.map(|answer| Some(answer.to_string()))
            }
            (Verb::Del, Some(container)) => {
                within(LIMIT, calls::del(&settings, &container)).await.map(|()| None)
            }
            _ => within(LIMIT, setup::setup(&settings)).await.map(|()| None),
        }
    });
    if verb == Verb::SetupWait && answer.is_ok() {
        runtime.block_on(stop_signal());
    }
    // Does not wait for a store that does not answer.
    runtime.shutdown_background();
    answer
}

async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        _ => std::future::pending().await,
    }
}

fn input() -> Result<Vec<u8>, KurmaError> {
    let stdin = std::io::stdin();
    let mut bytes = Vec::new();
    if !stdin.is_terminal() {
        stdin
            .lock()
            .take(INPUT_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| KurmaError(format!("the configuration on stdin cannot be read: {error}")))?;
    }
    if u64::try_from(bytes.len()).is_ok_and(|len| len > INPUT_MAX) {
        return Err(KurmaError(format!("the configuration on stdin has more than {INPUT_MAX} octets")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn the_bridge_of_the_document_is_another_plugins() {
        let bridge =
            br#"{"name": "mynet", "aci": "apcera.com/kurma/cni-netplugin", "containerInterface": "eth0",
            "type": "bridge", "bridge": "mynet0", "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "subnet": "10.10.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}}"#;
        let error = call(Verb::Setup, &[], bridge).unwrap_err().to_string();
        assert!(error.contains("mynet") && error.contains("`bridge`") && error.contains("tortie"), "{error}");
        let three = args(&["/proc/4194305/ns/net", "146d7cef-fbf6-41da-a2f8-eba218597f9c", "eth0"]);
        assert!(call(Verb::Add, &three, bridge).is_err());
        // The daemon also calls `del` for every network whose setup failed; this network is of another
        // plugin.
        assert_eq!(call(Verb::Del, &three, bridge), Ok(None));
    }

    #[test]
    fn what_is_wrong_with_a_configuration_is_named() {
        for (bad, word) in [
            (&b""[..], "no configuration"),
            (b"{\"name\": ", "not JSON"),
            (b"[]", "object"),
            (br#"{"name": "a/b"}"#, "name"),
            (br#"{"name": "n", "mtu": "big"}"#, "mtu"),
            (br#"{"name": "n", "mtuu": 1500}"#, "mtuu"),
            (br#"{"name": "n", "interface_prefix": "toolong"}"#, "interface_prefix"),
            (br#"{"name": "n", "log": "stderr"}"#, "log"),
            (br#"{"name": "n", "ports_table": "a b"}"#, "ports_table"),
            (br#"{"name": "n", "ipam": {"type": "host-local"}}"#, "host-local"),
        ] {
            let error = call(Verb::Setup, &[], bad).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
