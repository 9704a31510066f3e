//! A real etcd as a child process on loopback, with its data in a temporary folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the path of a program. If it is missing, the test is skipped; in CI that is a failure.
pub(crate) fn binary(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let peers = std::env::var_os("TORTIE_PEERS").map(PathBuf::from);
    let found = peers
        .into_iter()
        .chain([root.join("target/peers/bin"), root.join("target/peers/usr/bin")])
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file());
    if found.is_none() {
        let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!ci, "{name} is missing; run tests/tools/peers.sh");
        println!("skipped: {name} is neither in TORTIE_PEERS nor in target/peers nor in PATH");
    }
    found
}

/// TLS certificates of a cluster, created with openssl.
pub(crate) struct Tls {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Tls {
    /// Creates a certificate authority, and a certificate for 127.0.0.1 and localhost, for server and client.
    /// A second call creates a different authority.
    pub(crate) fn make(dir: &Path) -> Self {
        let (ca, ca_key) = (dir.join("ca.pem"), dir.join("ca.key"));
        openssl(&format!(
            "req -x509 {CURVE} -keyout {} -out {} -days 2 -subj /CN=test-ca",
            ca_key.display(),
            ca.display()
        ));
        let tls = Self { ca, cert: dir.join("cert.pem"), key: dir.join("key.pem") };
        tls.certify("tortie", [&tls.cert, &tls.key]);
        tls
    }

    /// Creates a certificate of this authority, with its key.
    pub(crate) fn certify(&self, name: &str, [cert, key]: [&Path; 2]) {
        let dir = self.ca.parent().expect("it lies in a folder");
        let file = |name: &str| dir.join(name).display().to_string();
        let (request, extensions, ca_key) = (file("request.pem"), file("extensions"), file("ca.key"));
        openssl(&format!("req -new {CURVE} -keyout {} -out {request} -subj /CN={name}", key.display()));
        let text = "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n";
        std::fs::write(&extensions, text).unwrap();
        openssl(&format!(
            "x509 -req -in {request} -CA {} -CAkey {ca_key} -CAcreateserial -out {} -days 2 -extfile {extensions}",
            self.ca.display(),
            cert.display()
        ));
    }
}

const CURVE: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

fn openssl(args: &str) {
    let done = Command::new("openssl").args(args.split(' ')).output().expect("openssl runs");
    assert!(done.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Returns a folder for etcd's data: in memory if there is room. An etcd that waits for a busy disk neither
/// answers nor renews leases in time, and disk latency is not what these tests cover.
fn data_folder() -> tempfile::TempDir {
    const ROOM: u64 = 4 << 30;
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    let made = (room >= ROOM).then(|| tempfile::tempdir_in(memory).ok()).flatten();
    made.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// Authentication of clients.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Security {
    Plain,
    /// The server presents a certificate.
    Tls,
    /// Server and client present certificates.
    Mutual,
}

/// One member of the cluster.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) client: u16,
    peer: u16,
    args: Vec<String>,
    child: Option<Child>,
}

impl Member {
    fn start(&mut self, etcd: &Path, dir: &Path) {
        // Killed with the thread of the test, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(etcd).args(&self.args);
        let log =
            std::fs::File::options().append(true).create(true).open(dir.join(format!("{}.log", self.name)));
        command.stdout(Stdio::null()).stderr(log.unwrap());
        self.child = Some(command.spawn().expect("etcd starts"));
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("runs").id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An etcd cluster for one test.
pub(crate) struct Cluster {
    etcd: PathBuf,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) members: Vec<Member>,
    pub(crate) tls: Option<Tls>,
}

impl Cluster {
    /// Starts `n` members and waits until they answer. `None` without etcd.
    pub(crate) fn start(n: usize, security: Security) -> Option<Self> {
        let etcd = binary("etcd")?;
        for _ in 0..5 {
            if let Some(cluster) = Self::try_start(&etcd, n, security) {
                return Some(cluster);
            }
        }
        panic!("etcd did not start in five attempts");
    }

    fn try_start(etcd: &Path, n: usize, security: Security) -> Option<Self> {
        let dir = data_folder();
        let tls = (security != Security::Plain).then(|| Tls::make(dir.path()));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut members: Vec<Member> = (0..n)
            .map(|i| Member {
                name: format!("m{i}"),
                client: port(),
                peer: port(),
                args: vec![],
                child: None,
            })
            .collect();
        let all: Vec<_> =
            members.iter().map(|m| format!("{}={scheme}://127.0.0.1:{}", m.name, m.peer)).collect();
        for member in &mut members {
            let (client, peer) = (
                format!("{scheme}://127.0.0.1:{}", member.client),
                format!("{scheme}://127.0.0.1:{}", member.peer),
            );
            let data = dir.path().join(&member.name).display().to_string();
            let mut args: Vec<String> = [
                ("name", member.name.as_str()),
                ("data-dir", data.as_str()),
                ("listen-client-urls", client.as_str()),
                ("advertise-client-urls", client.as_str()),
                ("listen-peer-urls", peer.as_str()),
                ("initial-advertise-peer-urls", peer.as_str()),
                ("initial-cluster", all.join(",").as_str()),
                ("heartbeat-interval", "50"),
                ("election-timeout", "500"),
            ]
            .iter()
            .flat_map(|(flag, value)| [format!("--{flag}"), (*value).to_owned()])
            .collect();
            if let Some(tls) = &tls {
                for side in ["", "peer-"] {
                    for (flag, file) in
                        [("cert-file", &tls.cert), ("key-file", &tls.key), ("trusted-ca-file", &tls.ca)]
                    {
                        // etcd requires client certificates as soon as a client authority is set.
                        if side.is_empty() && flag == "trusted-ca-file" && security != Security::Mutual {
                            continue;
                        }
                        args.extend([format!("--{side}{flag}"), file.display().to_string()]);
                    }
                }
                args.push("--peer-client-cert-auth".into());
                if security == Security::Mutual {
                    args.push("--client-cert-auth".into());
                }
            }
            member.args = args;
            member.start(etcd, dir.path());
        }
        let mut cluster = Self { etcd: etcd.to_owned(), dir, members, tls };
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            if cluster
                .members
                .iter_mut()
                .any(|m| m.child.as_mut().is_some_and(|c| c.try_wait().unwrap().is_some()))
            {
                return None;
            }
            if cluster.healthy() {
                return Some(cluster);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }

    fn healthy(&self) -> bool {
        self.try_etcdctl("5s", &["endpoint", "health"]).is_some()
    }

    /// Returns `host:port` of each member.
    pub(crate) fn endpoints(&self) -> String {
        self.members.iter().map(|m| format!("127.0.0.1:{}", m.client)).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "etcds" } else { "etcd" }, self.endpoints())
    }

    pub(crate) fn options(&self) -> tortie_store::StoreOptions {
        tortie_store::StoreOptions {
            url: self.url(),
            etcd_ca: self.tls.as_ref().map(|tls| tls.ca.clone()),
            ..tortie_store::StoreOptions::default()
        }
    }

    fn try_etcdctl(&self, limit: &str, args: &[&str]) -> Option<String> {
        let ctl = binary("etcdctl").expect("etcdctl comes with etcd");
        let mut command = Command::new(ctl);
        command.env("ETCDCTL_API", "3").args(["--dial-timeout", limit, "--command-timeout", limit]);
        command.arg("--endpoints").arg(self.endpoints());
        if let Some(tls) = &self.tls {
            command.arg("--cacert").arg(&tls.ca).arg("--cert").arg(&tls.cert).arg("--key").arg(&tls.key);
        }
        let done = command.args(args).output().expect("etcdctl runs");
        done.status.success().then(|| String::from_utf8(done.stdout).unwrap())
    }

    pub(crate) fn etcdctl(&self, args: &[&str]) -> String {
        self.try_etcdctl("30s", args).unwrap_or_else(|| panic!("etcdctl {args:?} fails"))
    }

    /// Restarts killed members on their data.
    pub(crate) fn restart(&mut self) {
        for member in self.members.iter_mut().filter(|m| m.child.is_none()) {
            member.start(&self.etcd, self.dir.path());
        }
    }

    /// Starts the killed first member on another port, out of reach of its clients. Returns its URL.
    pub(crate) fn rehome(&mut self) -> String {
        let member = &mut self.members[0];
        let (home, hidden) = (format!("127.0.0.1:{}", member.client), format!("127.0.0.1:{}", port()));
        let args = member.args.clone();
        member.args.iter_mut().for_each(|arg| *arg = arg.replace(&home, &hidden));
        self.restart();
        self.members[0].args = args;
        format!("etcd://{hidden}")
    }

    /// Reverts [`Self::rehome`].
    pub(crate) fn come_home(&mut self) {
        self.members[0].kill();
        self.restart();
    }

    pub(crate) fn wait_healthy(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.healthy() {
            assert!(Instant::now() < until, "etcd does not come back");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the index of the leader.
    pub(crate) fn leader(&self) -> usize {
        let status = self.etcdctl(&["endpoint", "status", "-w", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let leads = |m: &serde_json::Value| m["Status"]["leader"] == m["Status"]["header"]["member_id"];
        let leader = status.as_array().unwrap().iter().find(|m| leads(m)).expect("there is a leader");
        let endpoint = leader["Endpoint"].as_str().unwrap();
        self.members.iter().position(|m| endpoint.ends_with(&format!(":{}", m.client))).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(Member::kill);
    }
}

/// Returns a free port below the range that the kernel assigns.
fn port() -> u16 {
    loop {
        let port = rand::random_range(20_000..32_000);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
