//! Settings of the agent: flags override environment variables, which override the settings file. A value
//! that none of them sets comes from the store, else from the defaults.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use crate::agent::logging::format::LogForm;
use crate::api::MetricsPage;
use crate::plugins::{attach, cni, docker};
use tortie_kernel::Namespaces;

/// Value of `--kernel` and `--policy`: extent to which the agent manages the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeChoice {
    /// Write the desired state
    Program,
    /// Compute the desired state and report differences; write nothing
    Observe,
    /// BGP only: neither read nor write the kernel
    Off,
}

/// Value of `--ip4` and `--ip6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressChoice {
    /// The address of the interface that has the default route.
    Auto,
    /// No address: the host does not use this address family.
    Nothing,
    /// A fixed address with its prefix length.
    Given(IpAddr, u8),
}

impl FromStr for AddressChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::Nothing),
            _ => {}
        }
        let wrong = || format!("`{text}` is neither auto, none nor ADDRESS/LENGTH such as 192.0.2.13/24");
        let (addr, len) = text.split_once('/').ok_or_else(wrong)?;
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let len: u8 = len.parse().map_err(|_| wrong())?;
        if len > if addr.is_ipv4() { 32 } else { 128 } {
            return Err(wrong());
        }
        Ok(Self::Given(addr, len))
    }
}

impl<'de> Deserialize<'de> for AddressChoice {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Value of `--metrics-per-peer`: peers that have metric series of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerSeries {
    /// Configured peers, and mesh peers that are down
    #[default]
    Explicit,
    /// Every peer: about 60 series each
    All,
    /// Only peers that are down, with their state alone
    None,
}

/// Metrics page that uses the metric names of another exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompatPage {
    /// Names of Felix and kube-controllers.
    Felix,
    /// Names of bird_exporter.
    Bird,
}

impl From<CompatPage> for MetricsPage {
    fn from(page: CompatPage) -> Self {
        match page {
            CompatPage::Felix => Self::Felix,
            CompatPage::Bird => Self::Bird,
        }
    }
}

/// Value of `--metrics-compat`: a compatible metrics page and its listen address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompatListener {
    /// Exporter whose metric names the page uses.
    pub page: CompatPage,
    /// Listen address.
    pub addr: SocketAddr,
}

impl FromStr for CompatListener {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a metrics page: write felix=PORT or bird=PORT, or ADDRESS:PORT in place of \
                 PORT"
            )
        };
        let (page, place) = text.split_once('=').unwrap_or((text, ""));
        let (page, port) = match page {
            "felix" => (CompatPage::Felix, 9091),
            "bird" => (CompatPage::Bird, 9324),
            _ => return Err(wrong()),
        };
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let addr = match (place, place.parse::<u16>()) {
            ("", _) => local(port),
            (_, Ok(port)) => local(port),
            _ => place.parse().map_err(|_| wrong())?,
        };
        Ok(Self { page, addr })
    }
}

impl<'de> Deserialize<'de> for CompatListener {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Settings from one source: flags and environment, or the file. `None` means not set.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    /// Accept BGP connections here [default: the node's addresses, port from the store or 179]
    #[arg(long, value_name = "ADDR:PORT", env = "TORTIE_BGP_LISTEN", value_delimiter = ',')]
    pub bgp_listen: Vec<SocketAddr>,
    /// Serve health, metrics and the read-only API here; `none` for nowhere [default: 127.0.0.1:9099; with --kernel observe none]
    #[arg(long, value_name = "ADDR:PORT", env = "TORTIE_HTTP")]
    pub http: Option<HttpChoice>,
    /// Also accept HTTP requests for this host name; may be repeated. Loopback names and the address of
    /// --http are always accepted
    #[arg(long, value_name = "NAME", env = "TORTIE_HTTP_HOST", value_delimiter = ',')]
    pub http_host: Vec<String>,
    /// Peers that have their own time series in the metrics [default: explicit]
    #[arg(long, value_enum, env = "TORTIE_METRICS_PER_PEER")]
    pub metrics_per_peer: Option<PeerSeries>,
    /// Also serve metrics under the names of another exporter: felix[=9091], bird[=9324]; on loopback unless
    /// ADDR:PORT is given
    #[arg(long, value_name = "PAGE[=PLACE]", env = "TORTIE_METRICS_COMPAT", value_delimiter = ',')]
    pub metrics_compat: Vec<CompatListener>,
    /// Protocol number of own kernel routes [default: 179]
    #[arg(long, value_name = "N", env = "TORTIE_ROUTE_PROTOCOL", value_parser = clap::value_parser!(u8).range(5..))]
    pub route_protocol: Option<u8>,
    /// Metric of own kernel routes [default: 1790]
    #[arg(long, value_name = "N", env = "TORTIE_ROUTE_METRIC", value_parser = clap::value_parser!(u32).range(1..))]
    pub route_metric: Option<u32>,
    /// Handling of the kernel's routes [default: program]
    #[arg(long, value_enum, env = "TORTIE_KERNEL")]
    pub kernel: Option<ModeChoice>,
    /// Handling of the kernel's packet rules and of the routes of endpoints [default: as --kernel]
    #[arg(long, value_enum, env = "TORTIE_POLICY")]
    pub policy: Option<ModeChoice>,
    /// With --kernel observe: control socket of BIRD; may be repeated [default: the paths of Calico and
    /// Debian]
    #[arg(long, value_name = "PATH", env = "TORTIE_BIRD_SOCKET", value_delimiter = ',')]
    pub bird_socket: Vec<PathBuf>,
    /// File for the last good state of the store [default: /var/lib/tortie/cache.json]
    #[arg(long, value_name = "PATH", env = "TORTIE_CACHE")]
    pub cache: Option<PathBuf>,
    /// File for the MTU of workloads, which CNI plugins read on a store of Calico 3 [default:
    /// /var/lib/calico/mtu]
    #[arg(long, value_name = "PATH", env = "TORTIE_MTU_FILE")]
    pub mtu_file: Option<PathBuf>,
    /// This host's IPv4 address: auto, none or ADDR/LEN [default: from the store, else auto]
    #[arg(long, value_name = "CHOICE", env = "TORTIE_IP4")]
    pub ip4: Option<AddressChoice>,
    /// This host's IPv6 address: auto, none or ADDR/LEN [default: from the store, else none]
    #[arg(long, value_name = "CHOICE", env = "TORTIE_IP6")]
    pub ip6: Option<AddressChoice>,
    /// BMP station to export received routes to (RFC 7854) [default: bgp/v1/{host/NODE,global}/bmp_stations
    /// in the store]
    #[arg(long, value_name = "ADDR:PORT", env = "TORTIE_BMP_STATION", value_delimiter = ',')]
    pub bmp_station: Vec<SocketAddr>,
    /// Serve the Docker drivers tortie and tortie-ipam
    #[arg(long, value_name = "BOOL", env = "TORTIE_DOCKER", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub docker: Option<bool>,
    /// Also serve the Docker drivers under the names calico and calico-ipam
    #[arg(long, value_name = "BOOL", env = "TORTIE_DOCKER_COMPAT", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub docker_compat: Option<bool>,
    /// Folder for the Docker drivers' sockets [default: /run/docker/plugins]
    #[arg(long, value_name = "DIR", env = "TORTIE_DOCKER_DIR")]
    pub docker_dir: Option<PathBuf>,
    /// Socket of dockerd, from which names and labels of containers are read [default: /run/docker.sock]
    #[arg(long, value_name = "PATH", env = "TORTIE_DOCKER_API")]
    pub docker_api: Option<PathBuf>,
    /// Prefix of the container labels that become endpoint labels; `none` for no labels [default:
    /// org.projectcalico.label.]
    #[arg(long, value_name = "PREFIX", env = "TORTIE_DOCKER_LABELS")]
    pub docker_labels: Option<String>,
    /// Run without protections: without Landlock, which limits the files it may open, and with core dumps
    #[arg(long, value_name = "BOOL", env = "TORTIE_NO_SANDBOX", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub no_sandbox: Option<bool>,
    /// Format of log lines on standard error [default: auto]
    #[arg(long, value_enum, value_name = "FORM", env = "TORTIE_LOG_FORMAT")]
    pub log_format: Option<LogForm>,
    /// This host's AS number [default: from the store, else 64512]
    #[arg(long = "as", value_name = "N", env = "TORTIE_AS", value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(rename = "as")]
    pub asn: Option<u32>,
}

/// Value of `--http`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpChoice {
    /// HTTP is disabled.
    Nowhere,
    /// HTTP is served at this address.
    At(SocketAddr),
}

impl FromStr for HttpChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Nowhere);
        }
        text.parse()
            .map(Self::At)
            .map_err(|_| format!("`{text}` is neither none nor ADDRESS:PORT such as 127.0.0.1:9099"))
    }
}

impl<'de> Deserialize<'de> for HttpChoice {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Default path of the cached last good snapshot of the store.
pub const CACHE_PATH: &str = "/var/lib/tortie/cache.json";

impl Settings {
    /// Returns the path of the cached last good snapshot of the store.
    #[must_use]
    pub fn cache_path(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(|| PathBuf::from(CACHE_PATH))
    }

    /// Returns the path of the file with the MTU of workloads.
    #[must_use]
    pub fn mtu_file(&self) -> PathBuf {
        self.mtu_file.clone().unwrap_or_else(|| PathBuf::from(cni::MTU_FILE))
    }

    /// Reads the settings file: TOML, with the flags' names without leading dashes as keys.
    ///
    /// # Errors
    /// Returns a sentence with the file, the line and the reason.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let unreadable = |e: &dyn std::fmt::Display| {
            format!("the settings file {} cannot be read: {e}; name one with --config", path.display())
        };
        let text = tortie_store::read_file(path).map_err(|e| unreadable(&e))?;
        let text = String::from_utf8(text).map_err(|e| unreadable(&e))?;
        let settings: Self = toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        if settings.route_protocol.is_some_and(|p| p < 5) {
            return Err(format!(
                "{}: route-protocol is 5 to 255 (the kernel uses 0 to 4 itself)",
                path.display()
            ));
        }
        if settings.asn == Some(0) {
            return Err(format!("{}: as 0 is reserved (RFC 7607)", path.display()));
        }
        Ok(settings)
    }

    /// Merges two sources of settings: values of `weaker` fill those that `self` does not set.
    #[must_use]
    pub fn or(self, weaker: Self) -> Self {
        Self {
            bgp_listen: if self.bgp_listen.is_empty() { weaker.bgp_listen } else { self.bgp_listen },
            bmp_station: if self.bmp_station.is_empty() { weaker.bmp_station } else { self.bmp_station },
            http: self.http.or(weaker.http),
            http_host: if self.http_host.is_empty() { weaker.http_host } else { self.http_host },
            metrics_per_peer: self.metrics_per_peer.or(weaker.metrics_per_peer),
            metrics_compat: if self.metrics_compat.is_empty() {
                weaker.metrics_compat
            } else {
                self.metrics_compat
            },
            route_protocol: self.route_protocol.or(weaker.route_protocol),
            route_metric: self.route_metric.or(weaker.route_metric),
            kernel: self.kernel.or(weaker.kernel),
            policy: self.policy.or(weaker.policy),
            bird_socket: if self.bird_socket.is_empty() { weaker.bird_socket } else { self.bird_socket },
            cache: self.cache.or(weaker.cache),
            mtu_file: self.mtu_file.or(weaker.mtu_file),
            ip4: self.ip4.or(weaker.ip4),
            ip6: self.ip6.or(weaker.ip6),
            docker: self.docker.or(weaker.docker),
            docker_compat: self.docker_compat.or(weaker.docker_compat),
            docker_dir: self.docker_dir.or(weaker.docker_dir),
            docker_api: self.docker_api.or(weaker.docker_api),
            docker_labels: self.docker_labels.or(weaker.docker_labels),
            no_sandbox: self.no_sandbox.or(weaker.no_sandbox),
            log_format: self.log_format.or(weaker.log_format),
            asn: self.asn.or(weaker.asn),
        }
    }

    /// Returns the HTTP listen address; `None` disables HTTP.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        match self.http {
            Some(HttpChoice::Nowhere) => None,
            Some(HttpChoice::At(addr)) => Some(addr),
            // Felix, which still runs in observe mode, serves its health on port 9099.
            None if self.kernel() == ModeChoice::Observe => None,
            None => Some(SocketAddr::from(([127, 0, 0, 1], 9099))),
        }
    }

    /// Returns the options of the Docker drivers; `None` unless `--docker` or `--docker-compat` enables them.
    #[must_use]
    pub fn docker(&self, node: &str, socket: &Path) -> Option<docker::Options> {
        let compat = self.docker_compat.unwrap_or(false);
        if !self.docker.unwrap_or(compat) {
            return None;
        }
        let path = |given: &Option<PathBuf>, default: &str| given.clone().unwrap_or_else(|| default.into());
        let Ok(labels) = self.docker_labels.as_deref().unwrap_or(docker::LABEL_PREFIX).parse();
        Some(docker::Options {
            node: node.to_owned(),
            agent: attach::AgentClient::new(socket.to_owned(), attach::AgentAbsent::default()),
            dir: path(&self.docker_dir, docker::PLUGINS),
            compat,
            api: path(&self.docker_api, docker::API),
            labels,
            namespaces: Namespaces::default(),
        })
    }

    /// True if the process keeps access to all files, without Landlock.
    #[must_use]
    pub fn no_sandbox(&self) -> bool {
        self.no_sandbox.unwrap_or(false)
    }

    /// Returns the extent to which the agent manages the kernel.
    #[must_use]
    pub fn kernel(&self) -> ModeChoice {
        self.kernel.unwrap_or(ModeChoice::Program)
    }

    /// Returns the extent to which the agent manages packet rules and endpoints: that of the kernel unless a
    /// setting overrides it, and `Off` if the kernel is off.
    #[must_use]
    pub fn policy(&self) -> ModeChoice {
        match self.kernel() {
            ModeChoice::Off => ModeChoice::Off,
            kernel => self.policy.unwrap_or(kernel),
        }
    }

    /// Checks that the settings fit together, such as an address and its family.
    ///
    /// # Errors
    /// Returns a sentence with the flag and the reason.
    pub fn check(&self) -> Result<(), String> {
        if let Some(AddressChoice::Given(addr @ IpAddr::V6(_), _)) = self.ip4 {
            return Err(format!("--ip4 {addr} is an IPv6 address: use --ip6"));
        }
        if let Some(AddressChoice::Given(addr @ IpAddr::V4(_), _)) = self.ip6 {
            return Err(format!("--ip6 {addr} is an IPv4 address: use --ip4"));
        }
        if self.kernel() == ModeChoice::Observe
            && (self.docker == Some(true) || self.docker_compat == Some(true))
        {
            let text = "--docker and --kernel observe exclude each other: an observing agent writes \
                        nothing, and the Docker drivers write addresses and endpoints";
            return Err(text.to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_line_and_field() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tortie.toml");
        std::fs::write(&path, "route-metric = 100\nkernal = \"off\"\n").unwrap();
        let error = Settings::from_file(&path).unwrap_err();
        assert!(
            error.contains("tortie.toml") && error.contains("line 2") && error.contains("kernal"),
            "{error}"
        );
        std::fs::write(&path, "ip4 = \"10.0.0.1\"\n").unwrap();
        assert!(Settings::from_file(&path).unwrap_err().contains("ADDRESS/LENGTH"));
        std::fs::write(
            &path,
            "as = 64999\nkernel = \"observe\"\nhttp = \"none\"\nbgp-listen = [\"127.0.0.1:1790\"]\n",
        )
        .unwrap();
        let file = Settings::from_file(&path).unwrap();
        assert_eq!((file.asn, file.kernel(), file.http()), (Some(64_999), ModeChoice::Observe, None));
        let flags = Settings { asn: Some(1), ..Settings::default() };
        assert_eq!(flags.or(file).asn, Some(1));
    }

    #[test]
    fn rules_follow_the_kernel_flag_and_are_off_without_it() {
        let of = |kernel, policy| Settings { kernel, policy, ..Settings::default() }.policy();
        assert_eq!(of(None, None), ModeChoice::Program);
        assert_eq!(of(Some(ModeChoice::Observe), None), ModeChoice::Observe);
        assert_eq!(of(Some(ModeChoice::Observe), Some(ModeChoice::Program)), ModeChoice::Program);
        assert_eq!(of(None, Some(ModeChoice::Off)), ModeChoice::Off);
        assert_eq!(of(Some(ModeChoice::Off), Some(ModeChoice::Program)), ModeChoice::Off);
    }

    #[test]
    fn families_do_not_mix() {
        let settings = Settings { ip4: Some("fd00::1/64".parse().unwrap()), ..Settings::default() };
        assert!(settings.check().is_err());
        assert!("10.0.0.1/33".parse::<AddressChoice>().is_err());
    }
}
