//! Bounds of every setting in the store: any value that reaches the kernel, a file or this process is
//! limited, because any writer may have set it.

use std::time::Duration;

use tortie_config::key::{Key, Scope};
use tortie_config::resource::Setting;
use tortie_store::fixtures::put;

use super::*;

/// Target that the value of a setting affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Routes, rules, interfaces. The kernel crate additionally refuses values that match an interface of the
    /// host itself (`WorkloadPrefixes`).
    Kernel,
    /// Files, which are opened only below a log directory (`LogFile`).
    File,
    /// Timers and keys of this process.
    Process,
    /// The setting is parsed and has no effect.
    Nothing,
}

use Reach::{File, Kernel, Nothing, Process};

struct Row {
    name: &'static str,
    reach: Reach,
    good: &'static str,
    /// Values that are refused, so that the last good value stays in force.
    hostile: &'static [&'static str],
    /// Extreme values that are accepted.
    extreme: &'static [&'static str],
}

const fn row(
    name: &'static str,
    reach: Reach,
    good: &'static str,
    hostile: &'static [&'static str],
    extreme: &'static [&'static str],
) -> Row {
    Row { name, reach, good, hostile, extreme }
}

const FLAGS: &[&str] = &["maybe", "2", "-1", "true\u{0}", "\u{1b}[2J"];
const TIMES: &[&str] =
    &["-1", "1e9", "inf", "NaN", "31536001", "9999999999999999999", "18446744073709551615", "soon"];
const PORTS: &[&str] = &["0", "65536", "-1", "80,81"];
const MTUS: &[&str] = &["1", "67", "65536", "-1", "big"];
const MACS: &[&str] = &["00:00:00:00:00:00", "01:00:5e:00:00:01", "66:00:00:00:00", "host"];
const SEVERITIES: &[&str] = &["loud", "debug,info", "\u{7}"];

const TABLE: &[Row] = &[
    row("Ipv6Support", Kernel, "false", FLAGS, &["true"]),
    row("IpInIpEnabled", Kernel, "true", FLAGS, &["false", "none"]),
    row(
        "ProgramClusterRoutes",
        Kernel,
        "EnabledIPIPOnly",
        &["yes", "true", "EnabledVXLANOnly", "Enabled,Disabled"],
        &["Enabled", "EnabledNoEncapOnly", "disabled", "none"],
    ),
    row("IpInIpMtu", Kernel, "1400", &["1", "67", "65536", "-1", "4294967296", "big"], &["68", "65535", "0"]),
    row(
        "IpInIpTunnelAddr",
        Kernel,
        "10.65.0.1",
        &[
            "0.0.0.0",
            "127.0.0.1",
            "169.254.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "10.65.0.1/32",
            "host",
        ],
        &["none"],
    ),
    row("VXLANEnabled", Kernel, "true", FLAGS, &["false", "none"]),
    row("VXLANMTU", Kernel, "1400", MTUS, &["68", "65535", "0"]),
    row("VXLANMTUV6", Kernel, "1400", MTUS, &["68", "65535", "0"]),
    row("VXLANPort", Kernel, "8472", PORTS, &["1", "65535"]),
    row("VXLANVNI", Kernel, "1", &["0", "16777216", "4294967295", "-1"], &["16777215"]),
    row("AllowVXLANPacketsFromWorkloads", Kernel, "true", FLAGS, &["false"]),
    row(
        "ExternalNodesCIDRList",
        Kernel,
        "192.0.2.1,2001:db8::/64",
        &["192.0.2.1,", "192.0.2.0/33", "host", "192.0.2.1 192.0.2.2"],
        &["0.0.0.0/0", "none"],
    ),
    row("MTUIfacePattern", File, "^bond", &["bond(", "(a{1000}){1000}"], &["^(eth|en).*$"]),
    row(
        "IPv4VXLANTunnelAddr",
        Kernel,
        "10.65.0.1",
        &["0.0.0.0", "127.0.0.1", "::1", "10.65.0.1/32"],
        &["none"],
    ),
    row(
        "IPv6VXLANTunnelAddr",
        Kernel,
        "fd00::1",
        &["::", "::1", "fe80::1", "ff02::1", "10.65.0.1"],
        &["none"],
    ),
    row("VXLANTunnelMACAddr", Kernel, "66:00:00:00:00:01", MACS, &["none"]),
    row("VXLANTunnelMACAddrV6", Kernel, "66:00:00:00:00:01", MACS, &["none"]),
    row(
        "InterfacePrefix",
        Kernel,
        "tap",
        &[",", "cali,", "a/b", "a b", "cali\u{0}", "cali\u{1b}", "0123456789abcdef", MANY_PREFIXES],
        &["0123456789abcde", "cali,tap"],
    ),
    row(
        "LogFilePath",
        File,
        "/var/log/a.log",
        &["a.log", "../a.log", "/var/log/\u{0}", LONG_PATH],
        &["none"],
    ),
    row("LogSeverityFile", Process, "debug", SEVERITIES, &["none"]),
    row("LogSeverityScreen", Process, "debug", SEVERITIES, &["none"]),
    row("LogSeveritySys", Nothing, "debug", SEVERITIES, &["none"]),
    row(
        "DefaultEndpointToHostAction",
        Kernel,
        "RETURN",
        &["REJECT", "drop;accept", "1"],
        &["DROP", "ACCEPT"],
    ),
    row("IptablesFilterAllowAction", Nothing, "RETURN", &["DROP", "1"], &["ACCEPT"]),
    row("ChainInsertMode", Kernel, "append", &["replace", "-1"], &["insert"]),
    row(
        "IptablesMarkMask",
        Kernel,
        "0xff",
        &["0", "1", "0x80000000", "0x1ffffffff", "-1", "0x"],
        &["3", "0xffffffff"],
    ),
    // Any text is accepted: `LogPrefix` truncates and sanitizes it.
    row("LogPrefix", Kernel, "mine", &[], &["\u{1b}[2J\u{7}", LONG_PATH, "a\"b\\c"]),
    row("MaxIpsetSize", Nothing, "1000", &["0", "-1", "4294967296"], &["1", "4294967295"]),
    row(
        "FailsafeInboundHostPorts",
        Kernel,
        "tcp:22",
        &["icmp:1", "tcp:0", "tcp:65536", "tcp:1-9", MANY_PORTS],
        &["none"],
    ),
    row(
        "FailsafeOutboundHostPorts",
        Kernel,
        "tcp:22",
        &["icmp:1", "tcp:0", "tcp:65536", "tcp:1-9", MANY_PORTS],
        &["none"],
    ),
    row("DisableConntrackInvalidCheck", Kernel, "true", FLAGS, &["false"]),
    row("IgnoreLooseRPF", Kernel, "true", FLAGS, &["false"]),
    row("ReportingIntervalSecs", Process, "7", TIMES, &["0", "31536000", "0.000001"]),
    row("ReportingTTLSecs", Process, "7", TIMES, &["0", "31536000", "0.000001"]),
    row("EndpointReportingEnabled", Process, "true", FLAGS, &["false"]),
    row("EndpointReportingDelaySecs", Process, "7", TIMES, &["0", "31536000"]),
    row("OpenstackRegion", Process, "r-1", &["R1", "a/b", "-a", "a-"], &["none"]),
    row("RouteRefreshInterval", Nothing, "7", TIMES, &["0"]),
    row("IptablesRefreshInterval", Nothing, "7", TIMES, &["0"]),
    row("IpsetsRefreshInterval", Nothing, "7", TIMES, &["0"]),
    row("NetlinkTimeoutSecs", Nothing, "7", TIMES, &["0"]),
    row("HealthPort", Nothing, "9098", PORTS, &["1", "65535"]),
    row("PrometheusMetricsPort", Nothing, "9098", PORTS, &["1", "65535"]),
    row("MetadataAddr", Nothing, "10.0.0.1", &["::1", "host", "10.0.0.1/8"], &["none"]),
    row("MetadataPort", Nothing, "9098", PORTS, &["1", "65535"]),
    row("IpamLeakGracePeriodSecs", Process, "600", TIMES, &["0", "31536000"]),
    // No code reads this setting.
    row("ClusterGUID", Nothing, "mine", &[], &["\u{1b}[2J"]),
];

const MANY_PREFIXES: &str = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,aa,bb,cc,dd,ee,ff,gg";
/// Placeholders for texts that are too long to write here.
const LONG_PATH: &str = "/long";
const MANY_PORTS: &str = "many";

fn text(text: &str) -> String {
    match text {
        LONG_PATH => format!("/{}", "x".repeat(5_000)),
        MANY_PORTS => (1..=1_001).map(|port| port.to_string()).collect::<Vec<_>>().join(","),
        text => text.to_owned(),
    }
}

#[test]
fn every_setting_has_a_row() {
    let rows: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
    assert_eq!(rows, Setting::NAMES, "a setting without a row has no bound that anybody has seen");
    for row in TABLE {
        let nothing = Setting::WITHOUT_EFFECT.contains(&row.name) || row.name == "ClusterGUID";
        assert_eq!(row.reach == Nothing, nothing, "{}", row.name);
    }
}

/// Tested for global and host values, over a good value and without an earlier one.
#[test]
fn a_hostile_value_of_any_setting_is_refused_by_name_and_the_last_good_one_stays() {
    let mut count = 0;
    for row in TABLE {
        for scope in [Scope::Global, Scope::Host("h1".to_owned())] {
            let key = Key::Setting(scope, row.name.to_owned()).to_string();
            let mut fresh = Model::new("h1");
            let defaults = fresh.settings();
            let mut model = Model::new("h1");
            model.apply(&put(1, &key, row.good));
            let good = model.settings();
            assert_ne!(good, defaults, "{key}: {} is the default", row.good);
            for (hostile, revision) in row.hostile.iter().zip(2..) {
                for (model, expected) in [(&mut model, &good), (&mut fresh, &defaults)] {
                    model.apply(&put(revision, &key, &text(hostile)));
                    assert_eq!(model.settings(), *expected, "{key} `{hostile}`");
                    let problems: Vec<_> = model.invalid_keys().collect();
                    assert!(problems.len() == 1 && problems[0].key == key, "{key} `{hostile}`: {problems:?}");
                    assert!(problems[0].error.contains("write "), "{:?}", problems[0]);
                }
                count += 1;
            }
            for (extreme, revision) in row.extreme.iter().zip(100..) {
                model.apply(&put(revision, &key, &text(extreme)));
                assert_eq!(model.invalid_keys().count(), 0, "{key} `{extreme}`");
                bounds(&model);
            }
        }
    }
    println!("{count} hostile values of {} settings were refused", TABLE.len());
}

/// Checks the bounds of accepted values.
fn bounds(model: &Model) {
    let settings = model.settings();
    let now = std::time::Instant::now();
    for time in [
        settings.reporting_interval,
        settings.reporting_ttl,
        settings.endpoint_reporting_delay,
        settings.ipam_leak_grace_period,
    ] {
        assert!(now.checked_add(time * 4).is_some(), "{time:?}");
        assert!(time == Duration::ZERO || time >= Duration::from_micros(1), "{time:?}");
    }
    assert!(settings.interface_prefix.iter().all(|prefix| (1..=15).contains(&prefix.len())));
    for mtu in [settings.ip_in_ip_mtu, settings.vxlan_mtu, settings.vxlan_mtu_v6] {
        assert!(mtu.is_none_or(|mtu| (68..=65_535).contains(&mtu)));
    }
    assert!((1..1 << 24).contains(&settings.vxlan_vni) && settings.vxlan_port > 0);
}
