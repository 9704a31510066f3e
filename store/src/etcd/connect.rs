//! Connection to etcd: one member at a time, in random order, with a deadline for each call.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rand::seq::SliceRandom;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::{StoreError, StoreOptions};
use super::merge::reports_in_order;
use crate::etcd::error::store_error;
use crate::options::SYSTEM_CA;
use crate::read_file::read_file;

/// Limit for a call, including retries.
const DEADLINE: Duration = Duration::from_secs(5);
/// Limit for one attempt on one member, for calls that may be retried on the next one.
const ATTEMPT: Duration = Duration::from_millis(2_000);
/// Time after which the next member is tried in parallel. Over a slow link TCP, TLS, authentication and the
/// status request take several round trips, so earlier attempts continue until the deadline.
const PROBE: Duration = Duration::from_millis(1_000);
/// Pause between two attempts, since a failed member often fails at once.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval and timeout of HTTP/2 pings. etcd closes connections that ping more often than every 5 s (its
/// `--grpc-keepalive-min-time`).
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Number of times that a call may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempts {
    /// For commits: after a lost answer the transaction may have been committed.
    Once,
    /// For idempotent calls.
    Several,
}

/// The members of the cluster and the connection to one of them.
pub(super) struct Pool {
    urls: Vec<String>,
    files: Files,
    slot: Mutex<Slot>,
}

struct Slot {
    /// Index of the member that is in use or tried next.
    index: usize,
    member: Option<Member>,
    generation: u64,
}

/// The member that receives calls.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) client: Client,
    /// True if progress reports follow the changes before them; see [`reports_in_order`].
    pub(super) reports_in_order: bool,
    /// Number of the connection, so that a late failure of an old one does not close the new one.
    generation: u64,
    /// [`Files::digest`] of the credential files used for this connection.
    credentials: u64,
}

/// Paths of certificates, key and password. They are read at each connect. After a refusal the client
/// reconnects if the files have changed, since credentials may be renewed while the agent runs.
struct Files {
    tls: bool,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    user: Option<(String, PathBuf)>,
}

impl Pool {
    pub(super) fn new(
        options: &StoreOptions,
        mut endpoints: Vec<String>,
        tls: bool,
    ) -> Result<Self, StoreError> {
        let files = Files::new(options, tls)?;
        // Report invalid options at the start rather than as an unreachable store for ever.
        files.options()?;
        endpoints.sort();
        endpoints.dedup();
        // Otherwise all hosts would use the first member.
        endpoints.shuffle(&mut rand::rng());
        let scheme = if tls { "https" } else { "http" };
        let urls = endpoints.iter().map(|endpoint| format!("{scheme}://{endpoint}")).collect();
        Ok(Self { urls, files, slot: Mutex::new(Slot { index: 0, member: None, generation: 0 }) })
    }

    pub(super) fn describe(&self) -> String {
        let mut hosts: Vec<_> = self.urls.iter().map(|url| url.trim_start_matches("https://")).collect();
        hosts.iter_mut().for_each(|host| *host = host.trim_start_matches("http://"));
        hosts.sort_unstable();
        format!("{}://{}", if self.files.tls { "etcds" } else { "etcd" }, hosts.join(","))
    }

    /// Returns the current connection, or a new one to the first member that answers and has a leader. `said`
    /// keeps the last error of a failed member across attempts that only time out.
    pub(super) async fn member(&self, said: &mut Option<String>) -> Result<Member, StoreError> {
        let mut slot = self.slot.lock().await;
        if let Some(member) = &slot.member {
            return Ok(member.clone());
        }
        let first = slot.index;
        let mut rest = (0..self.urls.len()).map(|nth| (first + nth) % self.urls.len());
        let mut asked = FuturesUnordered::new();
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some((index, url)) = rest.next().and_then(|index| Some((index, self.urls.get(index)?))) {
                asked.push(async move { (index, url, self.connect(url).await) });
            }
            let until = if rest.len() > 0 { Instant::now() + PROBE } else { deadline };
            match timeout_at(until, asked.next()).await {
                Ok(Some((index, _, Ok((client, reports_in_order, credentials))))) => {
                    slot.index = index;
                    slot.generation += 1;
                    let generation = slot.generation;
                    let member = Member { client, reports_in_order, generation, credentials };
                    slot.member = Some(member.clone());
                    return Ok(member);
                }
                Ok(Some((_, url, Err(StoreError::Unreachable(text))))) => {
                    *said = Some(format!("{url}: {}", self.files.hint(text)));
                }
                // Another member would give the same answer.
                Ok(Some((_, url, Err(e)))) => return Err(describe(url, e)),
                Ok(None) => break,
                Err(_) if rest.len() > 0 => {}
                Err(_) => {
                    said.get_or_insert_with(|| format!("no member answers in {} s", DEADLINE.as_secs()));
                    break;
                }
            }
        }
        slot.index = (first + 1) % self.urls.len().max(1);
        Err(StoreError::Unreachable(said.clone().unwrap_or_else(|| "no member".to_owned())))
    }

    /// Returns the connection, true if the member reports progress in order, and the digest of the
    /// credentials.
    async fn connect(&self, url: &str) -> Result<(Client, bool, u64), StoreError> {
        // Computed before use, so that a renewal in between is detected at the next refusal.
        let credentials = self.files.digest();
        let options = self.files.options()?;
        let mut client = Client::connect([url], Some(options)).await.map_err(|e| store_error(&e))?;
        match client.status().await {
            Ok(status) if status.leader() == 0 => {
                Err(StoreError::Unreachable("this member has no leader".into()))
            }
            Ok(status) => Ok((client, reports_in_order(status.version()), credentials)),
            // Newer servers may deny the status to users; the member is alive.
            Err(Error::GRpcStatus(e)) if [7, 16].contains(&i32::from(e.code())) => {
                Ok((client, true, credentials))
            }
            Err(e) => Err(store_error(&e)),
        }
    }

    /// Drops the connection after a failure and selects the next member.
    pub(super) async fn drop_member(&self, generation: u64) {
        let mut slot = self.slot.lock().await;
        if slot.generation == generation && slot.member.is_some() {
            slot.member = None;
            slot.index = (slot.index + 1) % self.urls.len().max(1);
        }
    }

    /// Drops the connection, so that the same member is used again with renewed credentials.
    async fn forget_member(&self, generation: u64) {
        let mut slot = self.slot.lock().await;
        if slot.generation == generation {
            slot.member = None;
        }
    }

    /// Sends one call, also to other members if it may be retried.
    pub(super) async fn call<T, F>(
        &self,
        attempts: Attempts,
        send: impl Fn(Client) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + DEADLINE;
        let (mut said, mut renewed) = (None, false);
        loop {
            // Connecting is no attempt of the call: nothing was sent.
            let connected = timeout_at(deadline, self.member(&mut said)).await;
            let failure = match connected {
                Err(_) => {
                    let deadline_error = || deadline_error(&self.describe(), "no member answers");
                    return Err(said.map_or_else(deadline_error, StoreError::Unreachable));
                }
                Ok(Err(e @ StoreError::Unreachable(_))) => e,
                Ok(Err(e)) => return Err(e),
                Ok(Ok(member)) => {
                    let until = match attempts {
                        Attempts::Once => deadline,
                        Attempts::Several => deadline.min(Instant::now() + ATTEMPT),
                    };
                    let failure = match timeout_at(until, send(member.client)).await {
                        Ok(Ok(answer)) => return Ok(answer),
                        Ok(Err(e)) => store_error(&e),
                        Err(_) => deadline_error(&self.describe(), "no answer"),
                    };
                    if matches!(failure, StoreError::PermissionDenied(_))
                        && self.files.digest() != member.credentials
                    {
                        self.forget_member(member.generation).await;
                        // A refused call had no effect, so it may be sent again. Once only: the files may
                        // change continuously.
                        if !std::mem::replace(&mut renewed, true) {
                            continue;
                        }
                    }
                    if !matches!(failure, StoreError::Unreachable(_)) {
                        return Err(failure);
                    }
                    self.drop_member(member.generation).await;
                    if attempts == Attempts::Once {
                        let StoreError::Unreachable(text) = failure else { return Err(failure) };
                        return Err(StoreError::Unreachable(format!(
                            "{text} (it may have been written nevertheless)"
                        )));
                    }
                    failure
                }
            };
            if Instant::now() + PAUSE >= deadline {
                return Err(failure);
            }
            sleep(PAUSE).await;
        }
    }
}

fn deadline_error(place: &str, what: &str) -> StoreError {
    StoreError::Unreachable(format!("{place}: {what} in {} s", DEADLINE.as_secs()))
}

fn describe(url: &str, error: StoreError) -> StoreError {
    match error {
        StoreError::PermissionDenied(text) => StoreError::PermissionDenied(format!("{url}: {text}")),
        other => other,
    }
}

impl Files {
    fn new(options: &StoreOptions, tls: bool) -> Result<Self, StoreError> {
        let unusable = |text: &str| Err(StoreError::Unusable(text.to_owned()));
        let identity = match (&options.etcd_cert, &options.etcd_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => return unusable("--etcd-cert and --etcd-key belong together; give both or none"),
        };
        if !tls && (options.etcd_ca.is_some() || identity.is_some()) {
            return unusable("--etcd-ca, --etcd-cert and --etcd-key need an etcds:// datastore");
        }
        let user = match (&options.etcd_user, &options.etcd_password_file) {
            (Some(user), Some(file)) => Some((user.clone(), file.clone())),
            (None, None) => None,
            _ => return unusable("--etcd-user and --etcd-password-file belong together; give both or none"),
        };
        Ok(Self { tls, ca: options.etcd_ca.clone(), identity, user })
    }

    /// A server that requires a client certificate often just closes the connection.
    fn hint(&self, text: String) -> String {
        let cut = ["alert", "connection closed", "reset by peer", "broken pipe"];
        if self.tls && self.identity.is_none() && cut.iter().any(|sign| text.to_lowercase().contains(sign)) {
            return format!(
                "{text}; if this etcd requires client certificates, give --etcd-cert and --etcd-key"
            );
        }
        text
    }

    /// Hashes the content of the credential files; the value changes when one of them does.
    fn digest(&self) -> u64 {
        let identity = self.identity.iter().flat_map(|(cert, key)| [cert, key]);
        let files = self.ca.iter().chain(identity).chain(self.user.as_ref().map(|(_, file)| file));
        let mut hasher = DefaultHasher::new();
        files.for_each(|file| read_file(file).ok().hash(&mut hasher));
        hasher.finish()
    }

    fn options(&self) -> Result<ConnectOptions, StoreError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(DEADLINE)
            .with_keep_alive(PING.0, PING.1)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if self.tls {
            let ca =
                self.ca.clone().or_else(|| SYSTEM_CA.iter().map(PathBuf::from).find(|path| path.exists()));
            let Some(ca) = ca else {
                return Err(StoreError::Unusable(
                    "no certificate authorities are installed; name etcd's own with --etcd-ca".into(),
                ));
            };
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read("--etcd-ca", &ca)?));
            if let Some((cert, key)) = &self.identity {
                tls = tls.identity(Identity::from_pem(read("--etcd-cert", cert)?, read("--etcd-key", key)?));
            }
            options = options.with_tls(tls);
        }
        if let Some((user, file)) = &self.user {
            let password = String::from_utf8(read("--etcd-password-file", file)?).map_err(|_| {
                StoreError::Unusable(format!("--etcd-password-file {}: not UTF-8 text", file.display()))
            })?;
            options = options.with_user(user, password.trim_end_matches(['\r', '\n']));
        }
        Ok(options)
    }
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, StoreError> {
    read_file(path).map_err(|e| StoreError::Unusable(format!("{flag} {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// The cause reported by a member is kept when later attempts run into the deadline.
    #[tokio::test]
    async fn the_cause_is_reported_after_attempts_that_only_took_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let member = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            drop(listener.accept().await);
            let mut silent = Vec::new();
            loop {
                silent.push(listener.accept().await);
            }
        });
        let options = StoreOptions { url: format!("etcd://{member}"), ..StoreOptions::default() };
        let pool = Pool::new(&options, vec![member.clone()], false).unwrap();
        let error = pool
            .call(Attempts::Several, |mut client| async move { client.get("/calico/", None).await })
            .await
            .unwrap_err()
            .to_string();
        server.abort();
        assert!(
            error.contains(&member) && !error.contains("no answer") && !error.contains("no member"),
            "{error}"
        );
    }
}
