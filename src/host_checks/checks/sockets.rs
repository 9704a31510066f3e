//! Checks of the socket options that BGP and BFD use.

use crate::api::codes::{self, Severity};
use crate::host_checks::host::Host;
use crate::host_checks::result::Results;

pub(in crate::host_checks) fn options(host: &Host<'_>, results: &mut Results) {
    let good: Vec<&str> = host.now.sockets.iter().filter(|s| s.outcome.is_ok()).map(|s| s.name).collect();
    if !good.is_empty() {
        results.ok(&codes::CHECK_SOCKETS, format!("BGP sockets: {}", good.join(", ")));
    }
    for ability in &host.now.sockets {
        let Err(answer) = &ability.outcome else { continue };
        let text = format!("{} does not work, needed for {}: {answer}", ability.name, ability.needed_for);
        let fix = match ability.name {
            "real-time" => "give the service CAP_SYS_NICE, as packaging/systemd/tortie.service does",
            "tcp-ao" => "Linux 6.7 or later with CONFIG_TCP_AO, if peers require it",
            "tcp-md5" => "a kernel with CONFIG_TCP_MD5SIG, if peers have passwords",
            _ => "a newer kernel",
        };
        results.host_problem(Severity::Warning, ability.name, text, fix);
    }
}
