//! API requests that act on the core: ending a freeze, overriding a log level, and waiting for an endpoint.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::agent::api::server::Server;
use crate::agent::handle::{CoreRequest, stopping, within_timeout};
use crate::api::status::{ActionResult, ApiError, Applied, AppliedRequest, LogLevelRequest};

/// Sends a request to the core's event loop and waits for the answer.
async fn request<T>(
    server: &Server,
    request: impl FnOnce(oneshot::Sender<T>) -> CoreRequest,
) -> Result<T, ApiError> {
    let (answer, wait) = oneshot::channel();
    server.handle().core().thread()?.send(request(answer)).await.map_err(|_| stopping())?;
    within_timeout(wait).await
}

/// Accepts the store's current content, which ends a freeze.
pub(in crate::agent) async fn accept_store(server: &Server) -> Result<ActionResult, ApiError> {
    let text = if request(server, CoreRequest::AcceptStore).await? {
        "the store is accepted as it is; the agent follows it again"
    } else {
        "no freeze can be ended here: there is none, or /calico/v1/Ready is not `true`, or the store needs \
         a later version or has another data model, or another machine has this host's name: see `tortie \
         status`"
    };
    Ok(ActionResult { text: text.to_owned() })
}

/// Overrides a log level for a limited time.
pub(in crate::agent) async fn log_level(
    server: &Server,
    level: LogLevelRequest,
) -> Result<ActionResult, ApiError> {
    let set = request(server, |answer| CoreRequest::LogLevel { request: level, answer }).await?;
    set.map(|text| ActionResult { text }).map_err(|text| ApiError { code: "invalid".to_owned(), text })
}

/// Waits until the dataplane has applied an endpoint, at most the requested time.
pub(in crate::agent) async fn applied(server: &Server, request: AppliedRequest) -> Applied {
    let wait = Duration::from_millis(request.wait_millis.min(600_000));
    let (answer, result) = oneshot::channel();
    let timeout = |revision| Applied { result: "timeout".to_owned(), reason: None, revision };
    let core = server.handle().core();
    let sent = match core.thread() {
        Ok(core) => core.send(CoreRequest::Applied { request, answer }).await.is_ok(),
        Err(_) => false,
    };
    if !sent {
        return timeout(0);
    }
    // The core answers at once if the endpoint is applied. The grace turns a wait of 0 into a plain query.
    match tokio::time::timeout(wait + Duration::from_millis(250), result).await {
        Ok(Ok(applied)) => applied,
        _ => timeout(core.ask(|core| core.revision()).await.unwrap_or_default()),
    }
}
