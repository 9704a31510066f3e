//! HTTP server of the driver protocol: POST requests on unix sockets, JSON without content type, errors in
//! both of dockerd's forms.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::UnixListener;

use super::driver::Driver;
use super::error::Refusal;
use super::options::{LabelSource, Role};
use super::poolid::{DEFAULT, GLOBAL, shorten};
use super::wire;
use crate::plugins::attach::{Absent, may_remove, preflight};
use crate::plugins::docker::{sandbox, sync};
use tortie_engine::ipam::Exclusions;
use tortie_store::Purpose;

/// Maximum size of a request body in octets; several thousand `-p` options fit.
const BODY_MAX: usize = 512 * 1024;
/// Maximum number of octets that are read from a body, so that the sender of a larger one still gets an
/// answer.
const READ_MAX: usize = 16 * 1024 * 1024;
const JSON: &str = "application/vnd.docker.plugins.v1.2+json";

/// Binds a unix socket at a path.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    if let Ok(meta) = fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(io::Error::other("another kind of file is there: remove it"));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::other(
                "another driver answers there: stop it, or choose another --docker-dir",
            ));
        }
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves one driver on its socket until the task is aborted.
pub(super) async fn serve(
    shared: Arc<Driver>,
    driver: String,
    role: Role,
    listener: UnixListener,
    path: PathBuf,
) {
    let app = Router::new().fallback(move |request: Request| {
        let (shared, driver) = (shared.clone(), driver.clone());
        async move { answer(&shared, &driver, role, request).await }
    });
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(target: "tortie::docker", "{}: no longer served: {error}", path.display());
    }
}

fn respond(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], body.to_string()).into_response()
}

async fn answer(shared: &Arc<Driver>, driver: &str, role: Role, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let method = head.uri.path().trim_start_matches('/').to_owned();
    if head.method != Method::POST {
        let no = Refusal::new(format!("{} /{}: the protocol has POST only", head.method, shorten(&method)));
        return respond(StatusCode::INTERNAL_SERVER_ERROR, &no.body());
    }
    let begin = std::time::Instant::now();
    let answered = match read(&method, body).await {
        Ok(body) => match may_answer(shared, &method).await {
            Ok(excluded) => call(shared, driver, role, (method.as_str(), body.as_slice()), excluded).await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    let result = if answered.is_ok() { "ok" } else { "error" };
    let op = METHODS.iter().copied().find(|known| *known == method).unwrap_or("other");
    crate::plugins::metrics::calls().time(("docker", op, result), begin.elapsed());
    match answered {
        Ok(Some(answer)) => respond(StatusCode::OK, &answer),
        Ok(None) => {
            let no = Refusal::new(format!("there is no method {}", shorten(&method)));
            respond(StatusCode::NOT_FOUND, &no.body())
        }
        Err(refusal) => {
            tracing::warn!(target: "tortie::docker", %driver, "{method}: {refusal}");
            respond(StatusCode::INTERNAL_SERVER_ERROR, &refusal.body())
        }
    }
}

/// Checks that the store is writable for calls about addresses and endpoints. Returns the addresses that are
/// never allocated on this host, for calls that allocate.
async fn may_answer(shared: &Driver, method: &str) -> Result<Exclusions, Refusal> {
    let of_store = ["NetworkDriver.", "IpamDriver."].iter().any(|family| method.starts_with(family));
    if of_store && !method.ends_with(".GetCapabilities") && !method.ends_with(".GetDefaultAddressSpaces") {
        shared.state.store.may_write(Purpose::Docker).await?;
        may_remove(&*shared.state.store).await?;
    }
    if ["IpamDriver.RequestAddress", "NetworkDriver.CreateEndpoint"].contains(&method) {
        let Driver { options, state, .. } = shared;
        return Ok(preflight(&*state.store, &options.agent, &options.node, Absent::Passes).await?);
    }
    Ok(Exclusions::default())
}

async fn read(method: &str, body: Body) -> Result<Vec<u8>, Refusal> {
    let too_long = || Refusal::new(format!("{}: the body is longer than {BODY_MAX} octets", shorten(method)));
    let bytes = axum::body::to_bytes(body, READ_MAX).await.map_err(|_| too_long())?;
    if bytes.len() > BODY_MAX { Err(too_long()) } else { Ok(bytes.to_vec()) }
}

/// Methods with a name of their own in the metrics.
const METHODS: [&str; 13] = [
    "IpamDriver.RequestPool",
    "IpamDriver.ReleasePool",
    "IpamDriver.RequestAddress",
    "IpamDriver.ReleaseAddress",
    "NetworkDriver.CreateNetwork",
    "NetworkDriver.DeleteNetwork",
    "NetworkDriver.CreateEndpoint",
    "NetworkDriver.DeleteEndpoint",
    "NetworkDriver.EndpointOperInfo",
    "NetworkDriver.Join",
    "NetworkDriver.Leave",
    "NetworkDriver.ProgramExternalConnectivity",
    "NetworkDriver.RevokeExternalConnectivity",
];

/// Executes a call; `None` for an unknown method.
async fn call(
    shared: &Arc<Driver>,
    driver: &str,
    role: Role,
    (method, body): (&str, &[u8]),
    excluded: Exclusions,
) -> Result<Option<Value>, Refusal> {
    Ok(Some(match method {
        "Plugin.Activate" => {
            if role == Role::Ipam {
                shared.begin_epoch(driver).await?;
            }
            json!({ "Implements": [role.as_str()] })
        }
        "IpamDriver.GetCapabilities" => json!({ "RequiresMACAddress": false, "RequiresRequestReplay": true }),
        "IpamDriver.GetDefaultAddressSpaces" => {
            json!({ "LocalDefaultAddressSpace": DEFAULT, "GlobalDefaultAddressSpace": GLOBAL })
        }
        "IpamDriver.RequestPool" => shared.request_pool(driver, &wire::read(method, body)?).await?,
        "IpamDriver.ReleasePool" => {
            let request: wire::ReleasePool = wire::read(method, body)?;
            shared.release_pool(driver, &request.pool_id).await?
        }
        "IpamDriver.RequestAddress" => {
            shared.request_address(driver, &wire::read(method, body)?, excluded).await?
        }
        "IpamDriver.ReleaseAddress" => shared.release_address(driver, &wire::read(method, body)?).await?,
        "NetworkDriver.GetCapabilities" => json!({ "Scope": "local", "ConnectivityScope": "global" }),
        "NetworkDriver.CreateNetwork" => shared.create_network(&wire::read(method, body)?).await?,
        "NetworkDriver.DeleteNetwork" => shared.delete_network(&wire::read(method, body)?).await?,
        "NetworkDriver.CreateEndpoint" => {
            let request: wire::Named = wire::read(method, body)?;
            let answer = shared.create_endpoint(&request).await?;
            if shared.options.labels != LabelSource::Off {
                tokio::spawn(sync::label(shared.clone(), request.endpoint_id));
            }
            answer
        }
        "NetworkDriver.DeleteEndpoint" => shared.delete_endpoint(&wire::read(method, body)?).await?,
        "NetworkDriver.EndpointOperInfo" => {
            let _: wire::Named = wire::read(method, body)?;
            json!({ "Value": {} })
        }
        "NetworkDriver.Join" => {
            let request: wire::Named = wire::read(method, body)?;
            let answer = shared.join(&request).await?;
            tokio::spawn(sandbox::complete(shared.clone(), request.endpoint_id));
            answer
        }
        "NetworkDriver.Leave" => shared.leave(&wire::read(method, body)?).await?,
        "NetworkDriver.ProgramExternalConnectivity" => {
            shared.program_external(&wire::read(method, body)?).await?
        }
        "NetworkDriver.RevokeExternalConnectivity" => {
            shared.revoke_external(&wire::read(method, body)?).await?
        }
        "NetworkDriver.DiscoverNew" | "NetworkDriver.DiscoverDelete" => json!({}),
        _ => return Ok(None),
    }))
}
