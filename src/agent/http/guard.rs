//! Protects the TCP listener against foreign web pages: it answers requests for its own names only (DNS
//! rebinding), and the headers of each answer forbid cross-origin use by browsers.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::agent::http::respond::error_response;
use crate::api::client::{NODE_HEADER, escape};

/// Host names under which the listener answers.
#[derive(Debug, Clone)]
pub(super) struct Names {
    bound: IpAddr,
    more: Vec<String>,
}

impl Names {
    /// Accepts loopback names, the listener's address, and `more`.
    pub(super) fn new(bound: IpAddr, more: &[String]) -> Self {
        Self { bound, more: more.iter().map(|name| host_name(name)).collect() }
    }

    /// True if the request names one of them: in its only `Host` header, and in its target if that is a full
    /// URL.
    fn allow(&self, request: &Request) -> bool {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        host.to_str().is_ok_and(|host| self.has(host))
            && request.uri().authority().is_none_or(|target| self.has(target.as_str()))
    }

    fn has(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        if host.contains('@') {
            return false;
        }
        let name = host_name(authority.host());
        match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            // A foreign site cannot direct an IP address here by DNS. A listener on all addresses was reached
            // by one of them.
            Ok(ip) => {
                ip.is_loopback()
                    || ip == self.bound
                    || self.bound.is_unspecified()
                    || self.more.contains(&name)
            }
            Err(_) => name == "localhost" || self.more.contains(&name),
        }
    }
}

fn host_name(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Rejects a request with a foreign host name, and adds protective headers to every answer.
pub(super) async fn guard(names: Names, request: Request, next: Next) -> Response {
    let mut response = if names.allow(&request) {
        next.run(request).await
    } else {
        error_response(
            StatusCode::FORBIDDEN,
            "forbidden-host",
            "this agent does not accept requests for that host name: use its address or localhost, or start \
             it with --http-host NAME",
        )
    };
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Rejects a request that is addressed to another host's agent.
pub(super) async fn of_node(node: String, request: Request, next: Next) -> Response {
    let asked = request.headers().get(NODE_HEADER).and_then(|value| value.to_str().ok());
    match asked {
        Some(asked) if asked != escape(&node) => error_response(
            StatusCode::BAD_REQUEST,
            "other-node",
            &format!(
                "this is the agent of {node}, and the request is for {asked}: run the command there, or \
                 omit --node"
            ),
        ),
        _ => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn allows(names: &Names, target: &str, hosts: &[&str]) -> bool {
        let request = hosts.iter().fold(Request::get(target), |request, host| request.header("host", *host));
        names.allow(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn own_names_are_answered_and_no_others() {
        let names = Names::new(
            "192.0.2.7".parse().unwrap(),
            &["Node1.example.".to_owned(), "2001:db8::7".to_owned()],
        );
        let own = [
            "localhost",
            "LOCALHOST:9099",
            "localhost.",
            "127.0.0.1:9099",
            "127.8.8.8",
            "[::1]",
            "[::1]:9099",
            "192.0.2.7",
            "node1.example:9099",
            "NODE1.EXAMPLE.",
        ];
        for host in own {
            assert!(allows(&names, "/", &[host]), "{host}");
        }
        let foreign = [
            "",
            "evil.example",
            "localhost.evil.example",
            "evil.example:localhost",
            "localhost@evil.example",
            "user@localhost",
            "192.0.2.8",
            "[2001:db8::8]",
            "127.0.0.1.evil.example",
            "::1",
            "local host",
        ];
        for host in foreign {
            assert!(!allows(&names, "/", &[host]), "{host}");
        }
        assert!(!allows(&names, "/", &[]), "no name at all");
        assert!(!allows(&names, "/", &["localhost", "evil.example"]), "two names");
        assert!(!allows(&names, "http://evil.example/", &["localhost"]), "the target names another");
        assert!(allows(&names, "http://localhost/", &["localhost"]));
    }

    #[test]
    fn a_listener_on_all_addresses_answers_to_each_but_to_no_name() {
        for all in ["0.0.0.0", "::"] {
            let names = Names::new(all.parse().unwrap(), &[]);
            assert!(
                allows(&names, "/", &["198.51.100.3:9099"]) && allows(&names, "/", &["[2001:db8::3]:9099"])
            );
            assert!(!allows(&names, "/", &["evil.example"]));
        }
    }
}
