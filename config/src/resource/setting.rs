//! Parameters of the agent: `config/<Name>`, global and per host.
//!
//! One table gives each parameter its name, type and default; [`Settings`] is what is in force: the defaults,
//! then the global values, then the host's ([`Settings::apply`] in that order).

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::ValueError;
use super::setting_value::{
    AllowAction, Failsafe, HostAction, InsertMode, MarkMask, SettingValue, Severity, default_inbound,
    default_outbound,
};
use super::text::text;

macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident: $name:ident($ty:ty) = $default:expr;)+) => {
        /// One parameter with its value.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Setting {
            $($(#[$doc])* $name($ty),)+
            /// An empty text: the parameter's weaker source counts.
            Unset(String),
            /// A parameter that Tortie does not have; kept.
            Other {
                /// Its name.
                name: String,
                /// Its text.
                text: String,
            },
        }

        /// All parameters, as they are in force.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            $($(#[$doc])* pub $field: $ty,)+
        }

        impl Default for Settings {
            /// The defaults of Calico's agent, so far as they are known to its users.
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl Settings {
            /// Every parameter with the value that is in force, in the order of the table.
            #[must_use]
            pub fn all(&self) -> Vec<Setting> {
                vec![$(Setting::$name(self.$field.clone()),)+]
            }

            /// Puts one parameter in force; a stronger source is applied after a weaker one.
            pub fn apply(&mut self, setting: &Setting) {
                match setting {
                    $(Setting::$name(value) => self.$field = value.clone(),)+
                    Setting::Unset(_) | Setting::Other { .. } => {}
                }
            }
        }

        impl Setting {
            /// The names of all parameters that are read.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// Those of them that are read and change nothing: what they are about is done in another way or
            /// by flags of the agent.
            pub const WITHOUT_EFFECT: &'static [&'static str] = &[
                "HealthPort",
                "IpsetsRefreshInterval",
                "IptablesFilterAllowAction",
                "IptablesRefreshInterval",
                "LogSeveritySys",
                "MaxIpsetSize",
                "MetadataAddr",
                "MetadataPort",
                "NetlinkTimeoutSecs",
                "PrometheusMetricsPort",
                "RouteRefreshInterval",
            ];

            /// Reads the parameter `name`.
            ///
            /// # Errors
            /// When the parameter is known and the text is not one of its values.
            pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, ValueError> {
                let text = text(bytes)?;
                if text.is_empty() {
                    return Ok(Self::Unset(name.to_owned()));
                }
                match name {
                    $(stringify!($name) => read(text).map(Self::$name).and_then(bounded),)+
                    _ => Ok(Self::Other { name: name.to_owned(), text: text.to_owned() }),
                }
            }

            /// The parameter's name.
            #[must_use]
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$name(_) => stringify!($name),)+
                    Self::Unset(name) | Self::Other { name, .. } => name,
                }
            }

            /// The value as stored.
            #[must_use]
            pub fn to_text(&self) -> String {
                match self {
                    $(Self::$name(value) => value.to_text(),)+
                    Self::Unset(_) => String::new(),
                    Self::Other { text, .. } => text.clone(),
                }
            }
        }
    };
}

fn read<T: SettingValue>(text: &str) -> Result<T, ValueError> {
    T::from_text(text).ok_or_else(|| ValueError::new("", format_args!("`{text}`"), T::EXPECTED))
}

/// Refuses values of the type that this parameter cannot have.
fn bounded(setting: Setting) -> Result<Setting, ValueError> {
    let is_special = |addr: &Ipv4Addr| {
        addr.is_unspecified()
            || addr.is_loopback()
            || addr.is_multicast()
            || addr.is_broadcast()
            || addr.is_link_local()
    };
    match &setting {
        Setting::IpInIpTunnelAddr(Some(addr)) if is_special(addr) => {
            let expected = "write an address that a host may have: none of 0.0.0.0, loopback, link-local, multicast, broadcast";
            Err(ValueError::new("", format_args!("`{addr}`"), expected))
        }
        _ => Ok(setting),
    }
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

settings! {
    /// Rules and routes for IPv6 too.
    ipv6_support: Ipv6Support(bool) = true;
    /// Filter rules for IPIP packets; the tunnel itself follows the pools.
    ip_in_ip_enabled: IpInIpEnabled(bool) = false;
    /// MTU of the tunnel; `None` (0 in the store): 1440, or less where the link has less.
    ip_in_ip_mtu: IpInIpMtu(Option<u32>) = None;
    /// The node's address in the tunnel.
    ip_in_ip_tunnel_addr: IpInIpTunnelAddr(Option<Ipv4Addr>) = None;
    /// What workload interfaces begin with: any of these.
    interface_prefix: InterfacePrefix(Vec<String>) = vec!["cali".to_owned()];
    /// The log file; `None`: no file.
    log_file_path: LogFilePath(Option<PathBuf>) = None;
    /// What goes to the log file.
    log_severity_file: LogSeverityFile(Severity) = Severity::Info;
    /// What goes to the screen.
    log_severity_screen: LogSeverityScreen(Severity) = Severity::Info;
    /// What goes to syslog.
    log_severity_sys: LogSeveritySys(Severity) = Severity::Info;
    /// What becomes of packets from a workload to its host, after policy.
    default_endpoint_to_host_action: DefaultEndpointToHostAction(HostAction) = HostAction::Drop;
    /// What becomes of packets that policy allowed.
    iptables_filter_allow_action: IptablesFilterAllowAction(AllowAction) = AllowAction::Accept;
    /// Where rules are put in chains of others.
    chain_insert_mode: ChainInsertMode(InsertMode) = InsertMode::Insert;
    /// Packet mark bits that are ours.
    iptables_mark_mask: IptablesMarkMask(MarkMask) = MarkMask::default();
    /// Prefix of logged packets.
    log_prefix: LogPrefix(String) = "calico-packet".to_owned();
    /// Most members of an address set.
    max_ipset_size: MaxIpsetSize(u32) = 1_048_576;
    /// Ports on the host that are always reachable.
    failsafe_inbound: FailsafeInboundHostPorts(Vec<Failsafe>) = default_inbound();
    /// Ports that the host can always reach.
    failsafe_outbound: FailsafeOutboundHostPorts(Vec<Failsafe>) = default_outbound();
    /// No drop of packets that connection tracking calls invalid.
    disable_conntrack_invalid_check: DisableConntrackInvalidCheck(bool) = false;
    /// Run although `rp_filter` is loose.
    ignore_loose_rpf: IgnoreLooseRPF(bool) = false;
    /// Interval of status reports; 0: none.
    reporting_interval: ReportingIntervalSecs(Duration) = secs(30);
    /// How long a status report lives.
    reporting_ttl: ReportingTTLSecs(Duration) = secs(90);
    /// Report the state of endpoints.
    endpoint_reporting_enabled: EndpointReportingEnabled(bool) = false;
    /// Least time between two such reports.
    endpoint_reporting_delay: EndpointReportingDelaySecs(Duration) = secs(1);
    /// Interval of checks of routes; 0: none.
    route_refresh_interval: RouteRefreshInterval(Duration) = secs(90);
    /// Interval of checks of rules; 0: none.
    iptables_refresh_interval: IptablesRefreshInterval(Duration) = secs(90);
    /// Interval of checks of sets; 0: none.
    ipsets_refresh_interval: IpsetsRefreshInterval(Duration) = secs(10);
    /// How long netlink may take.
    netlink_timeout: NetlinkTimeoutSecs(Duration) = secs(10);
    /// Port of the health page.
    health_port: HealthPort(u16) = 9099;
    /// Port of the metrics page.
    prometheus_metrics_port: PrometheusMetricsPort(u16) = 9091;
    /// Address of OpenStack's metadata service; `None`: none.
    metadata_addr: MetadataAddr(Option<Ipv4Addr>) = Some(Ipv4Addr::LOCALHOST);
    /// Port of OpenStack's metadata service.
    metadata_port: MetadataPort(u16) = 8775;
    /// How long an address that nobody has is left alone before the host's agent releases it; 0: it never
    /// does.
    ipam_leak_grace_period: IpamLeakGracePeriodSecs(Duration) = secs(0);
    /// The cluster's random name.
    cluster_guid: ClusterGUID(String) = String::new();
}
