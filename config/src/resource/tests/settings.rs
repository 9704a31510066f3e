//! Settings of the agent.

use std::time::Duration;

use super::{inside, read, refused};
use crate::key::{Key, Scope};
use crate::resource::*;

fn key(name: &str) -> String {
    Key::Setting(Scope::Global, name.to_owned()).to_text()
}

fn setting(name: &str, text: &str) -> Setting {
    inside!(Setting, read(&key(name), text))
}

#[test]
fn defaults_are_those_of_felix_2() {
    let defaults = Settings::default();
    assert!(defaults.ipv6_support && defaults.ip_in_ip_enabled == Some(false));
    assert_eq!(defaults.interface_prefix, ["cali"]);
    assert_eq!(defaults.chain_insert_mode, InsertMode::Insert);
    assert_eq!(defaults.default_endpoint_to_host_action, HostAction::Drop);
    assert_eq!(defaults.iptables_mark_mask.bits(), 0xff00_0000);
    assert_eq!(defaults.reporting_interval, Duration::from_secs(30));
    assert_eq!(defaults.reporting_ttl, Duration::from_secs(90));
    assert_eq!(defaults.log_prefix, "calico-packet");
    assert_eq!(defaults.max_ipset_size, 1_048_576);
    assert_eq!(
        (defaults.health_port, defaults.prometheus_metrics_port, defaults.metadata_port),
        (9099, 9091, 8775)
    );
    let text = |list: &[Failsafe]| {
        list.iter()
            .map(|f| format!("{}{}", if f.udp { "u" } else { "t" }, f.port))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(text(&defaults.failsafe_inbound), "t22 t179 u68 u3784 u4784");
    assert_eq!(text(&defaults.failsafe_outbound), "t179 t2379 t2380 t4001 t7001 u53 u67 u3784 u4784");
}

#[test]
fn the_host_s_value_wins_and_an_empty_one_gives_way() {
    let mut settings = Settings::default();
    settings.apply(&setting("LogSeverityScreen", "WARNING"));
    settings.apply(&setting("LogSeverityScreen", ""));
    assert_eq!(settings.log_severity_screen, Severity::Warning);
    settings.apply(&setting("LogSeverityScreen", "none"));
    assert_eq!(settings.log_severity_screen, Severity::Off);
    settings.apply(&setting("FailsafeInboundHostPorts", "none"));
    assert!(settings.failsafe_inbound.is_empty());
}

#[test]
fn booleans_in_any_case() {
    for yes in ["true", "1", "yes", "Y", "T", "TRUE"] {
        assert_eq!(setting("IpInIpEnabled", yes), Setting::IpInIpEnabled(Some(true)), "{yes}");
    }
    for no in ["false", "0", "no", "N", "F", "False"] {
        assert_eq!(setting("IpInIpEnabled", no), Setting::IpInIpEnabled(Some(false)), "{no}");
    }
    assert!(refused(&key("IpInIpEnabled"), "maybe").contains("found `maybe`; write true or false"));
}

#[test]
fn texts_of_every_kind() {
    assert_eq!(
        setting("ReportingIntervalSecs", "0.5"),
        Setting::ReportingIntervalSecs(Duration::from_millis(500))
    );
    assert_eq!(setting("ReportingIntervalSecs", "0"), Setting::ReportingIntervalSecs(Duration::ZERO));
    assert_eq!(
        setting("InterfacePrefix", "tap, cali"),
        Setting::InterfacePrefix(vec!["tap".into(), "cali".into()])
    );
    assert_eq!(setting("IpInIpMtu", "1400"), Setting::IpInIpMtu(Some(1400)));
    assert_eq!(setting("IpInIpMtu", "0"), Setting::IpInIpMtu(None));
    assert_eq!(
        setting("IpInIpTunnelAddr", "192.168.0.1"),
        Setting::IpInIpTunnelAddr(Some([192, 168, 0, 1].into()))
    );
    assert_eq!(setting("VXLANEnabled", "none"), Setting::VXLANEnabled(None));
    assert_eq!(setting("VXLANEnabled", "true"), Setting::VXLANEnabled(Some(true)));
    assert_eq!(setting("VXLANMTU", "0"), Setting::VXLANMTU(None));
    assert_eq!(setting("VXLANVNI", "16777215"), Setting::VXLANVNI(16_777_215));
    assert_eq!(
        setting("ExternalNodesCIDRList", "192.0.2.1, 198.51.100.0/24,2001:db8::/64"),
        Setting::ExternalNodesCIDRList(
            ["192.0.2.1/32", "198.51.100.0/24", "2001:db8::/64"].map(|net| net.parse().unwrap()).into()
        )
    );
    assert_eq!(
        setting("VXLANTunnelMACAddr", "66:AB:00:01:02:03"),
        Setting::VXLANTunnelMACAddr(Some(MacAddr([0x66, 0xab, 0, 1, 2, 3])))
    );
    assert_eq!(setting("LogFilePath", "None"), Setting::LogFilePath(None));
    assert_eq!(setting("LogFilePath", "/var/log/x.log"), Setting::LogFilePath(Some("/var/log/x.log".into())));
    assert_eq!(
        setting("DefaultEndpointToHostAction", "RETURN"),
        Setting::DefaultEndpointToHostAction(HostAction::Return)
    );
    assert_eq!(setting("IptablesMarkMask", "0xff"), Setting::IptablesMarkMask(MarkMask::new(255).unwrap()));
    assert_eq!(
        setting("FailsafeInboundHostPorts", "tcp:22, udp:68,2222"),
        Setting::FailsafeInboundHostPorts(vec![
            Failsafe { udp: false, port: 22, net: None },
            Failsafe { udp: true, port: 68, net: None },
            Failsafe { udp: false, port: 2222, net: None },
        ])
    );
    assert_eq!(
        setting("SomethingElse", " kept "),
        Setting::Other { name: "SomethingElse".into(), text: "kept".into() }
    );
}

#[test]
fn a_failsafe_has_a_network_of_the_other_end() {
    let text = "tcp:192.0.2.0/24:22,udp:[2001:db8::/32]:53,tcp:192.0.2.9/32:22";
    let Setting::FailsafeInboundHostPorts(ports) = setting("FailsafeInboundHostPorts", text) else {
        panic!("it parses")
    };
    let nets: Vec<String> = ports.iter().map(|port| port.net.unwrap().to_string()).collect();
    assert_eq!(nets, ["192.0.2.0/24", "2001:db8::/32", "192.0.2.9/32"]);
    assert_eq!(Setting::FailsafeInboundHostPorts(ports).to_text(), text);
    assert_eq!(setting("FailsafeInboundHostPorts", "TCP:192.0.2.9:22").to_text(), "tcp:192.0.2.9/32:22");
}

#[test]
fn bad_texts_name_themselves() {
    for (name, bad) in [
        ("ReportingIntervalSecs", "-1"),
        ("ReportingIntervalSecs", "soon"),
        ("InterfacePrefix", "cali,,tap"),
        ("InterfacePrefix", "a/b"),
        ("IpInIpMtu", "67"),
        ("IpInIpTunnelAddr", "::1"),
        ("VXLANEnabled", "maybe"),
        ("VXLANMTU", "67"),
        ("VXLANVNI", "16777216"),
        ("VXLANVNI", "0"),
        ("ExternalNodesCIDRList", "192.0.2.1,host"),
        ("IPv4VXLANTunnelAddr", "127.0.0.1"),
        ("IPv6VXLANTunnelAddr", "fe80::1"),
        ("VXLANTunnelMACAddr", "01:00:5e:00:00:01"),
        ("VXLANTunnelMACAddrV6", "00:00:00:00:00:00"),
        ("LogFilePath", "felix.log"),
        ("LogSeverityFile", "loud"),
        ("DefaultEndpointToHostAction", "REJECT"),
        ("IptablesMarkMask", "0x"),
        ("IptablesMarkMask", "0"),
        ("IptablesMarkMask", "16"),
        ("FailsafeInboundHostPorts", "icmp:1"),
        ("FailsafeInboundHostPorts", "tcp:192.0.2.0/33:22"),
        ("FailsafeInboundHostPorts", "tcp:2001:db8::/32:22"),
        ("FailsafeInboundHostPorts", "tcp:[192.0.2.0/24]:22"),
        ("FailsafeInboundHostPorts", "192.0.2.0/24:22"),
        ("HealthPort", "0"),
    ] {
        assert!(refused(&key(name), bad).contains(&format!("found `{bad}`; write ")), "{name} {bad}");
    }
}
