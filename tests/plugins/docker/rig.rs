//! `tortie docker` as a separate process, called with the same octets that dockerd 20.10 sends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_config::Dialect;

use crate::common::calico3;
use crate::common::concurrency::uninterrupted;

pub(crate) const IPAM: &str = "tortie-ipam";
pub(crate) const NETWORK: &str = "tortie";

pub(crate) struct Rig {
    dir: tempfile::TempDir,
    url: String,
    child: Child,
    pub(crate) dialect: Dialect,
}

fn tortie(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command.args(["--datastore", url, "--node", "h1"]).stdin(Stdio::null());
    command
}

fn put(url: &str, key: &str, value: &str) {
    let done = tortie(url).args(["store", "put", "--raw", key, value]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

impl Rig {
    /// Starts on a store of its own, with a pool of each family and a disabled one.
    pub(crate) fn sqlite() -> Self {
        Self::sqlite_in(Dialect::V1)
    }

    /// The same on a store of this data model.
    pub(crate) fn sqlite_in(dialect: Dialect) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("store.db").display());
        Self::on(dialect, dir, url)
    }

    pub(crate) fn on(dialect: Dialect, dir: tempfile::TempDir, url: String) -> Self {
        let entries: Vec<(String, String)> = match dialect {
            Dialect::V1 => [
                ("/calico/v1/Ready", "true"),
                ("/calico/v1/ipam/v4/pool/10.65.0.0-16", r#"{"cidr":"10.65.0.0/16"}"#),
                ("/calico/v1/ipam/v6/pool/fd00:65::-64", r#"{"cidr":"fd00:65::/64"}"#),
                ("/calico/v1/ipam/v4/pool/10.66.0.0-16", r#"{"cidr":"10.66.0.0/16","disabled":true}"#),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
            Dialect::V3 => vec![
                calico3::cluster_information(true),
                calico3::node("h1", "192.0.2.1/24"),
                calico3::pool("10.65.0.0/16", &json!({"cidr": "10.65.0.0/16"})),
                calico3::pool("fd00:65::/64", &json!({"cidr": "fd00:65::/64"})),
                calico3::pool("10.66.0.0/16", &json!({"cidr": "10.66.0.0/16", "disabled": true})),
            ],
        };
        for (key, value) in entries {
            put(&url, &key, &value);
        }
        let child = Self::spawn(dir.path(), &url);
        let rig = Self { dir, url, child, dialect };
        rig.wait();
        rig
    }

    fn spawn(dir: &Path, url: &str) -> Child {
        tortie(url)
            .args(["docker", "--compat", "--agent-absent", "continue", "--dir"])
            .arg(dir)
            .arg("--api")
            .arg(dir.join("no-dockerd.sock"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn socket(&self, driver: &str) -> PathBuf {
        self.dir.path().join(format!("{driver}.sock"))
    }

    fn wait(&self) {
        let begin = Instant::now();
        while UnixStream::connect(self.socket("calico-ipam")).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the sockets do not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Freezes the data model, or ends that.
    pub(crate) fn ready(&self, is_ready: bool) {
        let (key, value) = match self.dialect {
            Dialect::V1 => ("/calico/v1/Ready".to_owned(), is_ready.to_string()),
            Dialect::V3 => calico3::cluster_information(is_ready),
        };
        put(&self.url, &key, &value);
    }

    /// Returns the value of a key as JSON.
    pub(crate) fn value(&self, key: &str) -> Value {
        let done = tortie(&self.url).args(["store", "export"]).output().unwrap();
        let all: Value = serde_json::from_slice(&done.stdout).unwrap();
        let text = all[key].as_str().unwrap_or_else(|| panic!("no {key}: {all}"));
        serde_json::from_str(text).unwrap()
    }

    /// Kills the process with SIGKILL and starts a new one.
    pub(crate) fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(self.dir.path(), &self.url);
        self.wait();
    }

    /// Sends the first request of a starting dockerd.
    pub(crate) fn activate(&self) -> Value {
        self.call(IPAM, "Plugin.Activate", "")
    }

    /// Returns status and body of the answer to these octets.
    pub(crate) fn raw(&self, driver: &str, method: &str, body: &[u8]) -> (u16, String) {
        let mut stream = UnixStream::connect(self.socket(driver)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // As dockerd sends it: an empty Host header and no Content-Type.
        let head = format!(
            "POST /{method} HTTP/1.1\r\nHost: \r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {}\r\n\
             Accept: application/vnd.docker.plugins.v1.2+json\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut text = Vec::new();
        let mut part = [0; 4_096];
        loop {
            let whole = String::from_utf8_lossy(&text).into_owned();
            if let Some((head, rest)) = whole.split_once("\r\n\r\n") {
                let length = head
                    .lines()
                    .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok())
                    .unwrap_or(0);
                if rest.len() >= length {
                    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
                    return (status, rest.to_owned());
                }
            }
            let n = uninterrupted(|| stream.read(&mut part)).unwrap();
            assert!(n > 0, "closed after {whole:?}");
            text.extend_from_slice(&part[..n]);
        }
    }

    /// Returns a successful answer.
    pub(crate) fn call(&self, driver: &str, method: &str, body: &str) -> Value {
        let (status, text) = self.raw(driver, method, body.as_bytes());
        assert_eq!(status, 200, "{method} {body}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Returns the text of an error, in both of dockerd's forms.
    pub(crate) fn refused(&self, driver: &str, method: &str, body: &str) -> String {
        refusal(&self.raw(driver, method, body.as_bytes()))
    }

    pub(crate) fn try_pool(&self, space: &str, pool: &str, sub: &str, v6: bool) -> (u16, String) {
        let body = json!({ "AddressSpace": space, "Pool": pool, "SubPool": sub, "Options": {}, "V6": v6 });
        self.raw(IPAM, "IpamDriver.RequestPool", body.to_string().as_bytes())
    }

    /// Returns the id of a pool.
    pub(crate) fn pool(&self, space: &str, pool: &str) -> String {
        let (status, text) = self.try_pool(space, pool, "", false);
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        answer["PoolID"].as_str().unwrap().to_owned()
    }

    pub(crate) fn release_pool(&self, id: &str) {
        let answer = self.call(IPAM, "IpamDriver.ReleasePool", &json!({ "PoolID": id }).to_string());
        assert_eq!(answer, json!({}));
    }

    pub(crate) fn try_address(&self, pool: &str, addr: &str, gateway: bool) -> Result<String, String> {
        let options =
            if gateway { json!({ "RequestAddressType": "com.docker.network.gateway" }) } else { Value::Null };
        let body = json!({ "PoolID": pool, "Address": addr, "Options": options });
        let answer = self.raw(IPAM, "IpamDriver.RequestAddress", body.to_string().as_bytes());
        if answer.0 != 200 {
            return Err(refusal(&answer));
        }
        let answer: Value = serde_json::from_str(&answer.1).unwrap();
        Ok(answer["Address"].as_str().unwrap().to_owned())
    }

    /// Returns an address with its prefix length.
    pub(crate) fn address(&self, pool: &str, addr: &str) -> String {
        self.try_address(pool, addr, false).unwrap()
    }

    pub(crate) fn gateway(&self, pool: &str, addr: &str) -> String {
        self.try_address(pool, addr, true).unwrap()
    }

    pub(crate) fn release(&self, pool: &str, addr: &str) {
        let addr = addr.split('/').next().unwrap();
        let body = json!({ "PoolID": pool, "Address": addr }).to_string();
        assert_eq!(self.call(IPAM, "IpamDriver.ReleaseAddress", &body), json!({}));
    }

    /// Returns the keys below a prefix.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let done = tortie(&self.url).args(["store", "ls", prefix]).output().unwrap();
        String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// Returns the addresses that IPAM holds, by the handles of all spaces.
    pub(crate) fn held(&self) -> Vec<String> {
        let mut all = self.keys("/calico/ipam/v2/handle/");
        all.extend(
            self.keys("/calico/tortie/v1/host/h1/docker/").into_iter().filter(|k| k.contains("/handle/")),
        );
        let mut all: Vec<String> =
            all.iter().map(|key| key.rsplit_once("libnetwork.").unwrap().1.to_owned()).collect();
        all.sort();
        all
    }

    /// Returns the findings of `ipam check` on a host without any address on its interfaces.
    pub(crate) fn findings(&self) -> Vec<String> {
        use tortie_engine::ipam::{Keyspace, check};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = tortie_store::StoreOptions { url: self.url.clone(), ..Default::default() };
        let ipam_state = runtime.block_on(async {
            let store = tortie_store::open(&options).await.unwrap();
            check::IpamState::load(&*store, &Keyspace::of(self.dialect)).await.unwrap()
        });
        let evidence = check::Evidence { host: Some("h1".into()), ..Default::default() };
        check::findings(&ipam_state, &evidence).into_iter().map(|found| format!("{found:?}")).collect()
    }

    /// Returns the drivers' state without the counter of dockerd's starts.
    pub(crate) fn remembered(&self) -> Vec<String> {
        let all = self.keys("/calico/tortie/v1/host/h1/docker/").into_iter();
        all.filter(|key| !key.ends_with("/epoch")).collect()
    }
}

/// Returns the text of an error; dockerd reads `Error` of IPAM drivers with status 200, and `Err` of all
/// others.
pub(crate) fn refusal((status, text): &(u16, String)) -> String {
    assert_eq!(*status, 500, "{text}");
    let answer: Value = serde_json::from_str(text).unwrap();
    assert_eq!(answer["Err"], answer["Error"], "{text}");
    let says = answer["Err"].as_str().unwrap();
    assert!(!says.is_empty() && says.len() < 1_000, "{says}");
    says.to_owned()
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
