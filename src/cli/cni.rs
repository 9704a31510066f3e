//! `tortie cni`: installs the CNI plugins into a runtime's folders, and tests them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;
use crate::plugins::cni::{self, Done, InstallError, Installation, Network, Version};
use tortie_store::DataModel;

/// Subcommands of `tortie cni`.
#[derive(Debug, Subcommand)]
pub(super) enum CniCommand {
    /// Install the plugins and a configuration list where container runtimes look for them; may be run again
    Install(InstallArgs),
    /// Print the configuration list that `install` writes
    Conflist(NetworkArgs),
    /// Check that a container could be added now; exit 1 if not
    Status(NetworkArgs),
    /// Run one call of the plugin tortie-cni, with CNI_COMMAND in the environment and the configuration on
    /// stdin
    Plugin,
}

/// Folders and file names of an installation.
#[derive(Debug, Args)]
pub(super) struct InstallArgs {
    /// Folder for the plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    bin_dir: PathBuf,
    /// Folder for configuration lists
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    conf_dir: PathBuf,
    /// File name of the list; runtimes use the first list in alphabetical order
    #[arg(long, value_name = "NAME", default_value = "10-tortie.conflist")]
    file: String,
    /// Install the plugins only
    #[arg(long)]
    no_conf: bool,
    /// Create links to this executable instead of copies
    #[arg(long)]
    link: bool,
    /// Also under the names calico and calico-ipam
    #[arg(long)]
    calico_names: bool,
    /// Replace a list that another program wrote
    #[arg(long)]
    force: bool,
    /// Remove what was installed
    #[arg(long)]
    uninstall: bool,
    #[command(flatten)]
    network: NetworkArgs,
}

/// Content of the network's configuration list.
#[derive(Debug, Clone, Args)]
pub(super) struct NetworkArgs {
    /// Name of the network; also the profile of its endpoints, and part of the IPAM handles of their
    /// addresses
    #[arg(long, value_name = "NAME", default_value = "tortie")]
    name: String,
    /// CNI version of the list
    #[arg(long, value_name = "VERSION", default_value = "1.0.0", value_parser = version)]
    cni_version: Version,
    /// Address families of a container
    #[arg(long, value_enum, value_name = "WHICH", default_value = "ipv4")]
    addresses: Families,
    /// MTU of the containers' interfaces, in octets [default: the kernel's]
    #[arg(long, value_name = "OCTETS")]
    mtu: Option<u32>,
    /// Behaviour while no agent answers: wait, error (after 10 s) or continue [default: error]
    #[arg(long, value_name = "WORD", value_parser = ["wait", "error", "continue"])]
    agent_absent: Option<String>,
    /// Log of the plugins: syslog, stderr, none or a file [default: syslog]
    #[arg(long, value_name = "WHERE")]
    log: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Families {
    /// IPv4
    Ipv4,
    /// IPv6
    Ipv6,
    /// One address of each family
    Both,
}

fn version(text: &str) -> Result<Version, String> {
    let known = || Version::ALL.map(Version::as_str).join(", ");
    Version::ALL.into_iter().find(|v| v.as_str() == text).ok_or_else(|| format!("write one of {}", known()))
}

pub(super) fn run(context: &Context, command: &CniCommand) -> Result<(), Failure> {
    match command {
        CniCommand::Install(args) => install(context, args),
        CniCommand::Conflist(args) => {
            output::write_out(&format!("{:#}\n", network(context, args)?.conflist()))
        }
        CniCommand::Status(args) => status(context, args),
        CniCommand::Plugin => {
            // The plugin has already printed its result or its error on stdout.
            let exit = cni::run(cni::Plugin::Main);
            if exit == std::process::ExitCode::SUCCESS {
                Ok(())
            } else {
                Err(Failure::new(Exit::No, "cni", ""))
            }
        }
    }
}

fn network(context: &Context, args: &NetworkArgs) -> Result<Network, Failure> {
    if !cni::is_identifier(&args.name) {
        return Err(Failure::usage(
            "--name: use letters, digits, `_`, `.` and `-`, and begin with a letter or digit",
        ));
    }
    let globals = &context.globals;
    let mut more = Map::new();
    let paths = [
        ("etcd_ca_cert_file", &globals.etcd_ca),
        ("etcd_cert_file", &globals.etcd_cert),
        ("etcd_key_file", &globals.etcd_key),
        ("etcd_password_file", &globals.etcd_password_file),
    ];
    for (name, path) in paths {
        if let Some(path) = path {
            more.insert(name.into(), path.display().to_string().into());
        }
    }
    let data_model = (globals.data_model != DataModel::Auto).then(|| globals.data_model.to_string());
    let texts = [
        ("data_model", &data_model),
        ("etcd_user", &globals.etcd_user),
        ("node", &globals.node),
        ("agentAbsent", &args.agent_absent),
        ("log", &args.log),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            more.insert(name.into(), text.clone().into());
        }
    }
    more.insert("socket".into(), globals.socket.display().to_string().into());
    if let Some(mtu) = args.mtu {
        more.insert("mtu".into(), mtu.into());
    }
    let network = Network {
        name: args.name.clone(),
        version: args.cni_version,
        datastore: globals.datastore.clone(),
        more,
        ipv4: args.addresses != Families::Ipv6,
        ipv6: args.addresses != Families::Ipv4,
    };
    // The written configuration is parsed as by the plugin, so that errors appear now and not when a
    // container starts.
    let bytes = plugin_config(&network, Version::NEWEST).to_string();
    cni::Config::parse(bytes.as_bytes(), cni::Strictness::Refuse, &[])
        .map_err(|(_, error)| Failure::usage(error.to_string()))?;
    Ok(network)
}

/// Returns the configuration that a runtime would pass to the plugin.
fn plugin_config(network: &Network, version: Version) -> Value {
    let list = network.conflist();
    let mut plugin = list.pointer("/plugins/0").cloned().unwrap_or_default();
    if let Some(plugin) = plugin.as_object_mut() {
        plugin.insert("name".into(), network.name.clone().into());
        plugin.insert("cniVersion".into(), version.as_str().into());
    }
    plugin
}

fn install(context: &Context, args: &InstallArgs) -> Result<(), Failure> {
    if args.file.contains('/') || !(args.file.ends_with(".conflist")) {
        return Err(Failure::usage(
            "--file: give a file name that ends in .conflist, without a folder (--conf-dir has it)",
        ));
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Partial, "program", format!("this executable: {error}")))?;
    let installation = Installation {
        program,
        bin_dir: args.bin_dir.clone(),
        conf_dir: args.conf_dir.clone(),
        conf_file: (!args.no_conf).then(|| args.file.clone()),
        link: args.link,
        calico_names: args.calico_names,
        force: args.force,
    };
    let done = if args.uninstall {
        installation.uninstall()
    } else {
        installation.install(&network(context, &args.network)?)
    };
    let done = done.map_err(|error| {
        let exit = match &error {
            InstallError::Foreign(_) => Exit::Refused,
            InstallError::Io { error, .. } if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Exit::Permission
            }
            InstallError::Io { .. } => Exit::Partial,
        };
        Failure::new(exit, "install", error.to_string())
    })?;
    let items: Vec<Value> = done
        .iter()
        .map(|(path, done)| json!({"path": path.display().to_string(), "result": done.as_str()}))
        .collect();
    output::print(context.globals.output, &items, |out, _| {
        for (path, done) in done.iter().filter(|(_, done)| !args.uninstall || *done != Done::Absent) {
            let _ = writeln!(out, "{:<9} {}", done.as_str(), path.display());
        }
    })
}

/// Runs the plugin with `STATUS`, as a runtime of version 1.1.0 does.
fn status(context: &Context, args: &NetworkArgs) -> Result<(), Failure> {
    use std::io::Write as _;
    let failed =
        |error: std::io::Error| Failure::new(Exit::Partial, "plugin", format!("the plugin: {error}"));
    let input = plugin_config(&network(context, args)?, Version::NEWEST).to_string();
    let mut child = Command::new("/proc/self/exe")
        .args(["cni", "plugin"])
        .env("CNI_COMMAND", "STATUS")
        .env("CNI_PATH", "/opt/cni/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes());
    }
    let answer = child.wait_with_output().map_err(failed)?;
    if answer.status.success() {
        return super::store::say(context.globals.output, "containers can be added");
    }
    let error: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
    let msg = error.get("msg").and_then(Value::as_str).unwrap_or("the plugin printed nothing");
    Err(Failure::new(Exit::No, "not-available", msg))
}
