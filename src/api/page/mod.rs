//! The web page: one embedded file of HTML, style and script, which uses the same API as the command line.
//!
//! The agent serves the file with a Content-Security-Policy under which a browser runs exactly this script
//! and this style and connects to no other server. The file itself has no data: the page reads all of it from
//! `v1/...` of the same server, or, in an archive of `tortie diags`, from answers embedded in the file.

use std::sync::LazyLock;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest as _, Sha256};

/// Source of the page.
pub const PAGE: &str = include_str!("index.html");

/// Content-Security-Policy of the page; `asks` lists the servers that it may connect to.
fn policy(asks: &str) -> String {
    let source = |tag| element(tag).map_or_else(|| "'none'".to_owned(), source_of);
    format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src {asks}; base-uri 'none'; form-action \
         'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        source("script"),
        source("style"),
    )
}

/// Content-Security-Policy of the page that an agent serves.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    // Hashes and keywords are ASCII, so this cannot fail; if it did, the browser would allow nothing.
    HeaderValue::try_from(policy("'self'") + "; frame-ancestors 'none'")
        .unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// Returns the page with embedded answers, keyed by their path after `v1/`, for a browser without access to
/// an agent. Such a page makes no requests.
#[must_use]
pub fn with_answers(answers: &serde_json::Map<String, serde_json::Value>) -> String {
    const HEAD: &str = "<meta charset=\"utf-8\">";
    // `</script>` ends a script element even inside a JSON string; JSON can express every text without `<`.
    let answers = serde_json::Value::from(answers.clone()).to_string().replace('<', "\\u003c");
    let more = format!(
        "{HEAD}\n<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n<script type=\"application/json\" \
         id=\"kept\">{answers}</script>",
        policy("'none'")
    );
    PAGE.replacen(HEAD, &more, 1)
}

/// Returns the source expression `'sha256-...'` of a text (CSP Level 3, 2.3.1).
fn source_of(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// Returns the content of the only element with this tag.
fn element(tag: &str) -> Option<&'static str> {
    let (_, rest) = PAGE.split_once(&format!("<{tag}"))?;
    let (_, rest) = rest.split_once('>')?;
    Some(rest.split_once(&format!("</{tag}>"))?.0)
}

/// Returns the HTTP response with the page.
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

    /// Functions that would turn text from the store into code, or send requests to another server.
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
    fn a_file_with_answers_is_the_page_and_no_answer_is_code() {
        let mut answers = serde_json::Map::new();
        answers.insert(
            "status".to_owned(),
            serde_json::json!({ "node": "</script><script>alert(1)</script><!--" }),
        );
        let file = with_answers(&answers);
        assert_eq!((file.matches("<script").count(), file.matches("</script").count()), (2, 2));
        assert!(!file.contains("<!--") && file.contains("connect-src 'none';"), "{}", &file[..900]);
        let script = element("script").unwrap();
        assert!(file.contains(&source_of(script)) && file.contains(script), "the policy is of this script");
        let (_, kept) = file.split_once("id=\"kept\">").unwrap();
        let (kept, _) = kept.split_once("</script>").unwrap();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(kept).unwrap(),
            serde_json::Value::from(answers)
        );
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
