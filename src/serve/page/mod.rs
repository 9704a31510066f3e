//! The page: one file of HTML, style and script, embedded, that asks the API as the command line does.
//!
//! What it does: serves that file with a policy under which a browser runs exactly this script and this style and
//! connects to nobody else. What it does not: know anything; all that the page shows it reads from `v1/...` beside itself.

use std::sync::LazyLock;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use tortie_config::digest::{base64, sha256};

/// The page.
pub const PAGE: &str = include_str!("index.html");

/// What a browser may do with the page.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let source = |tag| element(tag).map_or_else(|| "'none'".to_owned(), source_of);
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; form-action \
         'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        source("script"),
        source("style"),
    );
    // Hashes and words are ASCII; were they not, nothing at all would be allowed.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// `'sha256-...'` of a text (CSP Level 3, 2.3.1).
fn source_of(text: &str) -> String {
    format!("'sha256-{}'", base64(&sha256(text.as_bytes())))
}

/// The text of the one element of this name.
fn element(tag: &str) -> Option<&'static str> {
    let (_, rest) = PAGE.split_once(&format!("<{tag}"))?;
    let (_, rest) = rest.split_once('>')?;
    Some(rest.split_once(&format!("</{tag}>"))?.0)
}

/// The answer that is the page.
#[must_use]
pub fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, POLICY.clone()),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    ];
    (headers, PAGE).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What would let text of the store become code, or the page ask elsewhere.
    const FORBIDDEN: &[&str] = &[
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "createContextualFragment",
        "parseFromString",
        "setHTMLUnsafe",
        "eval(",
        "new Function",
        "setTimeout('",
        "setTimeout(\"",
        "srcdoc",
        "javascript:",
        "http:",
        "https:",
        "WebSocket",
        "XMLHttpRequest",
        "sendBeacon",
        "import(",
        "url(",
        "@import",
        " style=\"",
        " onclick",
        "'//",
        "\"//",
        "`//",
        "localStorage",
        "sessionStorage",
        "document.cookie",
    ];

    #[test]
    fn the_page_is_small_and_holds_nothing_that_runs_text_or_asks_elsewhere() {
        assert!(PAGE.len() <= 80 * 1024, "the page has {} octets", PAGE.len());
        for word in FORBIDDEN {
            assert!(!PAGE.contains(word), "the page has `{word}`");
        }
        for tag in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "one {tag}");
            assert_eq!(PAGE.matches(&format!("</{tag}>")).count(), 1, "one end of {tag}");
        }
    }

    #[test]
    fn the_policy_names_the_hashes_of_what_is_embedded() {
        let response = page();
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        for tag in ["script", "style"] {
            let source = source_of(element(tag).unwrap());
            assert!(policy.contains(&format!("{tag}-src {source};")), "{policy}");
        }
        assert!(
            policy.contains("connect-src 'self';") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
    }
}
