//! Requests that change something in the core: ending a freeze, a level of the logs, and waiting for an endpoint.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::agent::api::server::Server;
use crate::agent::handle::{CoreRequest, stopping, within_timeout};
use crate::api::status::{ActionResult, ApiError, Applied, AppliedRequest, LogLevelRequest};

/// Hands a request to the core's event loop and waits for its answer.
async fn request<T>(
    server: &Server,
    request: impl FnOnce(oneshot::Sender<T>) -> CoreRequest,
) -> Result<T, ApiError> {
    let (answer, wait) = oneshot::channel();
    server.handle().core().thread()?.send(request(answer)).await.map_err(|_| stopping())?;
    within_timeout(wait).await
}

/// Accepts the store as it is, ending a freeze.
pub(in crate::agent) async fn accept_store(server: &Server) -> Result<ActionResult, ApiError> {
    let text = if request(server, CoreRequest::AcceptStore).await? {
        "the store is taken as it is; all goes on"
    } else {
        "nothing was frozen by a loss, or /calico/v1/Ready is not `true`, or the store needs a later version or speaks another data \
         model, or another machine has this host's name: see `tortie status`"
    };
    Ok(ActionResult { text: text.to_owned() })
}

/// Sets another level of the logs, for a while.
pub(in crate::agent) async fn log_level(
    server: &Server,
    level: LogLevelRequest,
) -> Result<ActionResult, ApiError> {
    let set = request(server, |answer| CoreRequest::LogLevel { request: level, answer }).await?;
    set.map(|text| ActionResult { text }).map_err(|text| ApiError { code: "invalid".to_owned(), text })
}

/// Waits until an endpoint is in force.
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
    // The core answers at once when it is so; the grace makes a wait of 0 a query.
    match tokio::time::timeout(wait + Duration::from_millis(250), result).await {
        Ok(Ok(applied)) => applied,
        _ => timeout(core.ask(|core| core.revision()).await.unwrap_or_default()),
    }
}
