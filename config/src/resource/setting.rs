//! Settings of the agent: `config/<Name>`, global and per host.
//!
//! One table defines name, type and default of each setting. [`Settings`] contains the values in force: the
//! defaults, overridden by global values, overridden by the host's ([`Settings::apply`] in this order).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use super::ValueError;
use super::bgp_configuration::ProgramClusterRoutes;
use super::interface_regex::InterfaceRegex;
use super::names::MacAddr;
use super::setting_value::{
    AllowAction, Failsafe, HostAction, InsertMode, MarkMask, Region, SettingValue, Severity, calico3_inbound,
    calico3_outbound, default_inbound, default_outbound,
};
use super::text::text;
use tortie_net::Cidr;

macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident: $name:ident($ty:ty) = $default:expr;)+) => {
        /// A setting with its value.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Setting {
            $($(#[$doc])* $name($ty),)+
            /// An empty value, which leaves the value of the weaker source in force.
            Unset(String),
            /// A setting that Tortie does not have, kept as it is.
            Other {
                /// Name of the setting.
                name: String,
                /// Value as text.
                text: String,
            },
        }

        /// All settings with the values in force.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            $($(#[$doc])* pub $field: $ty,)+
        }

        impl Default for Settings {
            /// Returns the documented defaults of Calico's agent.
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl Settings {
            /// Returns all settings with the values in force, in the order of the table.
            #[must_use]
            pub fn all(&self) -> Vec<Setting> {
                vec![$(Setting::$name(self.$field.clone()),)+]
            }

            /// Sets one setting. Stronger sources must be applied after weaker ones.
            pub fn apply(&mut self, setting: &Setting) {
                match setting {
                    $(Setting::$name(value) => self.$field = value.clone(),)+
                    Setting::Unset(_) | Setting::Other { .. } => {}
                }
            }
        }

        impl Setting {
            /// Names of all settings that are parsed.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// Names of settings that contain a tunnel address of a host.
            pub const TUNNEL_ADDRESSES: [&'static str; 3] =
                ["IpInIpTunnelAddr", "IPv4VXLANTunnelAddr", "IPv6VXLANTunnelAddr"];

            /// Names of settings that are parsed and have no effect, because another mechanism or a flag of
            /// the agent replaces them.
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

            /// Parses the setting `name`.
            ///
            /// # Errors
            /// If the setting is known, and the text is not a valid value.
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

            /// Returns the name of the setting.
            #[must_use]
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$name(_) => stringify!($name),)+
                    Self::Unset(name) | Self::Other { name, .. } => name,
                }
            }

            /// Formats the value as it is stored.
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

impl Settings {
    /// Returns the defaults on a store of Calico 3, where other ports are always reachable, and pools turn on
    /// the filter of IPIP.
    #[must_use]
    pub fn calico3() -> Self {
        Self {
            failsafe_inbound: calico3_inbound(),
            failsafe_outbound: calico3_outbound(),
            ip_in_ip_enabled: None,
            ..Self::default()
        }
    }
}

fn read<T: SettingValue>(text: &str) -> Result<T, ValueError> {
    T::from_text(text).ok_or_else(|| ValueError::new("", format_args!("`{text}`"), T::EXPECTED))
}

/// Rejects values that the type allows and the setting does not.
fn bounded(setting: Setting) -> Result<Setting, ValueError> {
    let is_special = |addr: &Ipv4Addr| {
        addr.is_unspecified()
            || addr.is_loopback()
            || addr.is_multicast()
            || addr.is_broadcast()
            || addr.is_link_local()
    };
    match &setting {
        Setting::IpInIpTunnelAddr(Some(addr)) | Setting::IPv4VXLANTunnelAddr(Some(addr))
            if is_special(addr) =>
        {
            let expected = "write an address that a host may have: none of 0.0.0.0, loopback, link-local, multicast, broadcast";
            Err(ValueError::new("", format_args!("`{addr}`"), expected))
        }
        Setting::IPv6VXLANTunnelAddr(Some(addr))
            if addr.is_unspecified()
                || addr.is_loopback()
                || addr.is_multicast()
                || addr.is_unicast_link_local() =>
        {
            let expected =
                "write an address that a host may have: none of ::, loopback, link-local, multicast";
            Err(ValueError::new("", format_args!("`{addr}`"), expected))
        }
        Setting::VXLANTunnelMACAddr(Some(mac)) | Setting::VXLANTunnelMACAddrV6(Some(mac))
            if mac.0[0] & 1 == 1 || mac.0 == [0; 6] =>
        {
            let expected = "write the MAC address of one host: neither a multicast address nor zero";
            Err(ValueError::new("", format_args!("`{mac}`"), expected))
        }
        Setting::VXLANVNI(vni) if *vni > VNI_MAX => {
            let expected = "write a VXLAN network identifier from 1 to 16777215";
            Err(ValueError::new("", format_args!("`{vni}`"), expected))
        }
        _ => Ok(setting),
    }
}

/// Largest VXLAN network identifier (RFC 7348, section 5: 24 bits).
const VNI_MAX: u32 = 0xff_ffff;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

settings! {
    /// Install rules and routes for IPv6 too.
    ipv6_support: Ipv6Support(bool) = true;
    /// Filter IPIP packets; the tunnel itself depends on the pools. `None`, the default of Calico 3, for what
    /// the pools say.
    ip_in_ip_enabled: IpInIpEnabled(Option<bool>) = Some(false);
    /// Routes to blocks of other hosts that come from the store (`ProgramClusterRoutes` of Felix): those of IPIP
    /// pools with `Enabled` and `EnabledIPIPOnly`. `None` for BGP.
    program_cluster_routes: ProgramClusterRoutes(Option<ProgramClusterRoutes>) = None;
    /// MTU of the tunnel; `None` (0 in the store) for 1440, or less if the link requires it.
    ip_in_ip_mtu: IpInIpMtu(Option<u32>) = None;
    /// Tunnel address of the node.
    ip_in_ip_tunnel_addr: IpInIpTunnelAddr(Option<Ipv4Addr>) = None;
    /// Use VXLAN (`true`) or not (`false`) whatever the pools say; `None` for what they say.
    vxlan_enabled: VXLANEnabled(Option<bool>) = None;
    /// MTU of the IPv4 VXLAN device; `None` (0 in the store) for that of its link less the overhead.
    vxlan_mtu: VXLANMTU(Option<u32>) = None;
    /// MTU of the IPv6 VXLAN device; `None` (0 in the store) for that of its link less the overhead.
    vxlan_mtu_v6: VXLANMTUV6(Option<u32>) = None;
    /// UDP port of VXLAN.
    vxlan_port: VXLANPort(u16) = 4789;
    /// VXLAN network identifier.
    vxlan_vni: VXLANVNI(u32) = 4096;
    /// Accept VXLAN packets that workloads send.
    allow_vxlan_from_workloads: AllowVXLANPacketsFromWorkloads(bool) = false;
    /// Networks of machines outside of the cluster that may send tunnel packets.
    external_nodes: ExternalNodesCIDRList(Vec<Cidr>) = Vec::new();
    /// Interfaces whose smallest MTU is that of the host.
    mtu_iface_pattern: MTUIfacePattern(InterfaceRegex) = InterfaceRegex::default();
    /// IPv4 address of the node in the VXLAN; per host.
    ipv4_vxlan_tunnel_addr: IPv4VXLANTunnelAddr(Option<Ipv4Addr>) = None;
    /// IPv6 address of the node in the VXLAN; per host.
    ipv6_vxlan_tunnel_addr: IPv6VXLANTunnelAddr(Option<Ipv6Addr>) = None;
    /// MAC address of the node's IPv4 VXLAN device; `None` for the one that its name gives. Per host.
    vxlan_tunnel_mac_addr: VXLANTunnelMACAddr(Option<MacAddr>) = None;
    /// MAC address of the node's IPv6 VXLAN device; `None` for the one that its name gives. Per host.
    vxlan_tunnel_mac_addr_v6: VXLANTunnelMACAddrV6(Option<MacAddr>) = None;
    /// Name prefixes of workload interfaces.
    interface_prefix: InterfacePrefix(Vec<String>) = vec!["cali".to_owned()];
    /// Path of the log file; `None` for no file.
    log_file_path: LogFilePath(Option<PathBuf>) = None;
    /// Minimum severity for the log file.
    log_severity_file: LogSeverityFile(Severity) = Severity::Info;
    /// Minimum severity for the terminal.
    log_severity_screen: LogSeverityScreen(Severity) = Severity::Info;
    /// Minimum severity for syslog.
    log_severity_sys: LogSeveritySys(Severity) = Severity::Info;
    /// Action for packets from a workload to its host, after policy.
    default_endpoint_to_host_action: DefaultEndpointToHostAction(HostAction) = HostAction::Drop;
    /// Action for packets that policy allowed.
    iptables_filter_allow_action: IptablesFilterAllowAction(AllowAction) = AllowAction::Accept;
    /// Position of Tortie's rules among those of other programs.
    chain_insert_mode: ChainInsertMode(InsertMode) = InsertMode::Insert;
    /// Packet mark bits reserved for Tortie.
    iptables_mark_mask: IptablesMarkMask(MarkMask) = MarkMask::default();
    /// Default log prefix of packets.
    log_prefix: LogPrefix(String) = "calico-packet".to_owned();
    /// Maximum number of members in an address set.
    max_ipset_size: MaxIpsetSize(u32) = 1_048_576;
    /// Ports of the host that are always reachable.
    failsafe_inbound: FailsafeInboundHostPorts(Vec<Failsafe>) = default_inbound();
    /// Remote ports that the host can always reach.
    failsafe_outbound: FailsafeOutboundHostPorts(Vec<Failsafe>) = default_outbound();
    /// Do not drop packets in conntrack state INVALID.
    disable_conntrack_invalid_check: DisableConntrackInvalidCheck(bool) = false;
    /// Run even if `rp_filter` is loose.
    ignore_loose_rpf: IgnoreLooseRPF(bool) = false;
    /// Interval of status reports; 0 for none.
    reporting_interval: ReportingIntervalSecs(Duration) = secs(30);
    /// Time to live of a status report.
    reporting_ttl: ReportingTTLSecs(Duration) = secs(90);
    /// Report the status of endpoints.
    endpoint_reporting_enabled: EndpointReportingEnabled(bool) = false;
    /// Minimum time between two endpoint status reports.
    endpoint_reporting_delay: EndpointReportingDelaySecs(Duration) = secs(1);
    /// OpenStack's region, which is part of the keys of status reports in a store of Calico 3.
    openstack_region: OpenstackRegion(Region) = Region::default();
    /// Interval of route checks; 0 for none.
    route_refresh_interval: RouteRefreshInterval(Duration) = secs(90);
    /// Interval of rule checks; 0 for none.
    iptables_refresh_interval: IptablesRefreshInterval(Duration) = secs(90);
    /// Interval of address set checks; 0 for none.
    ipsets_refresh_interval: IpsetsRefreshInterval(Duration) = secs(10);
    /// Timeout of netlink requests.
    netlink_timeout: NetlinkTimeoutSecs(Duration) = secs(10);
    /// Port of the health endpoint.
    health_port: HealthPort(u16) = 9099;
    /// Port of the metrics endpoint.
    prometheus_metrics_port: PrometheusMetricsPort(u16) = 9091;
    /// Address of OpenStack's metadata service; `None` for none.
    metadata_addr: MetadataAddr(Option<Ipv4Addr>) = Some(Ipv4Addr::LOCALHOST);
    /// Port of OpenStack's metadata service.
    metadata_port: MetadataPort(u16) = 8775;
    /// Time after which the agent of a host releases a leaked address; 0 for never.
    ipam_leak_grace_period: IpamLeakGracePeriodSecs(Duration) = secs(0);
    /// Random name of the cluster.
    cluster_guid: ClusterGUID(String) = String::new();
}
