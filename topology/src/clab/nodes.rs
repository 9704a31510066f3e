//! Merges the four configuration levels of each node, and checks the result.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::context::{Context, name};
use super::raw::{NodeConfig, RawFile, RawStage, RawStageExec, RawStages};
use super::topology::{Bind, Healthcheck, Kind, Node, Stage, StagePlan};
use crate::clab::expand;
use crate::error::Invalid;

/// Placeholders that containerlab replaces by directories of the lab.
const LAB_DIR: &str = "__clabDir__";
const NODE_DIR: &str = "__clabNodeDir__";

/// Configuration levels of one node, in ascending precedence: defaults, kind, group, node.
struct Levels<'a> {
    context: &'a Context<'a>,
    lab: &'a str,
    node: &'a str,
    place: String,
    all: Vec<&'a NodeConfig>,
}

pub(super) fn resolve(
    context: &Context<'_>,
    raw: &RawFile,
    notes: &mut Vec<String>,
) -> Result<Vec<Node>, Invalid> {
    let empty = NodeConfig::default();
    let topology = &raw.topology;
    if topology.nodes.0.is_empty() {
        return Err(context.fault("topology.nodes", "nodes:", "there is no node".to_owned(), "add one"));
    }
    let mut nodes = Vec::with_capacity(topology.nodes.0.len());
    for (node, own) in &topology.nodes.0 {
        let place = format!("topology.nodes.{node}");
        name(context, &place, node)?;
        let own = own.as_ref().unwrap_or(&empty);
        let group = match own.group.as_deref().or(topology.defaults.group.as_deref()) {
            None => None,
            Some(group) => Some(topology.groups.get(group).ok_or_else(|| {
                let text = format!("there is no group `{group}`");
                context.fault(format!("{place}.group"), group, text, "add it to topology.groups")
            })?),
        };
        let kind_name = own.kind.as_deref().or(group.and_then(|g| g.kind.as_deref()));
        let Some(kind_name) = kind_name.or(topology.defaults.kind.as_deref()) else {
            let text = "`kind` is missing".to_owned();
            return Err(context.fault(place, &format!("{node}:"), text, "write kind: linux"));
        };
        let kind = kind(context, &place, kind_name)?;
        if matches!(node.as_str(), "host" | "mgmt-net" | "macvlan") && kind == Kind::Linux {
            let text = format!("in links `{node}` means something else than a node");
            return Err(context.fault(place, &format!("{node}:"), text, "give the node another name"));
        }
        let all = [Some(&topology.defaults), topology.kinds.get(kind_name), group, Some(own)];
        let levels =
            Levels { context, lab: &raw.name, node, place, all: all.into_iter().flatten().collect() };
        levels.notes(notes);
        nodes.push(levels.node(kind)?);
    }
    for (i, node) in nodes.iter().enumerate() {
        for (stage, plan) in Stage::ALL.iter().zip(&node.stages) {
            for (other, until) in &plan.wait_for {
                let place = format!("topology.nodes.{}.stages.{}.wait-for", node.name, stage.name());
                let Some(other_node) = nodes.iter().find(|n| n.name == *other) else {
                    return Err(context.fault(
                        place,
                        other,
                        format!("there is no node `{other}`"),
                        "name a node",
                    ));
                };
                if nodes[i].name == *other {
                    let text = format!("{other} waits for itself");
                    return Err(context.fault(place, "", text, "name another node"));
                }
                if *until == Stage::Healthy && other_node.healthcheck.is_none() {
                    let text = format!("{other} has no health check and would never be healthy");
                    return Err(context.fault(
                        place,
                        "",
                        text,
                        "give it `healthcheck`, or wait for configure",
                    ));
                }
            }
        }
    }
    Ok(nodes)
}

fn kind(context: &Context<'_>, place: &str, kind: &str) -> Result<Kind, Invalid> {
    match kind {
        "linux" => Ok(Kind::Linux),
        "bridge" => Ok(Kind::Bridge),
        "host" => Ok(Kind::Host),
        other => {
            let text = format!("nodes of kind `{other}` cannot be built from namespaces");
            let next = "use linux, bridge or host, or run this file under containerlab";
            Err(context.fault(format!("{place}.kind"), other, text, next))
        }
    }
}

impl Levels<'_> {
    fn node(&self, kind: Kind) -> Result<Node, Invalid> {
        if let Some(mode) =
            self.last(|l| l.network_mode.as_deref()).filter(|m| !matches!(*m, "none" | "bridge"))
        {
            let text = format!("network-mode {mode} cannot be built from namespaces");
            return Err(self.fault(
                "network-mode",
                mode,
                text,
                "use none, or kind: host for the machine's own network",
            ));
        }
        if let Some(user) =
            self.last(|l| l.user.as_ref()).filter(|u| !matches!(u.0.as_str(), "0" | "root" | "0:0"))
        {
            let text = format!("nodes run as root here, not as user {}", user.0);
            return Err(self.fault("user", &user.0, text, "remove `user`"));
        }
        if let Some(mode) = self.last(|l| l.pid_mode.as_deref()) {
            let text = format!("pid-mode {mode} cannot be built from namespaces");
            return Err(self.fault("pid-mode", mode, text, "remove `pid-mode`"));
        }
        let mut exec = Vec::new();
        for (i, command) in self.all.iter().flat_map(|l| l.exec.iter().flatten()).enumerate() {
            exec.push(self.command(&format!("exec[{i}]"), command)?);
        }
        let stage_list = |pick: fn(&RawStages) -> Option<&RawStage>, stage: Stage| self.stage(pick, stage);
        let stages = [
            stage_list(|s| s.create.as_ref(), Stage::Create)?,
            stage_list(|s| s.create_links.as_ref(), Stage::CreateLinks)?,
            stage_list(|s| s.configure.as_ref(), Stage::Configure)?,
            stage_list(|s| s.healthy.as_ref(), Stage::Healthy)?,
            stage_list(|s| s.exit.as_ref(), Stage::Exit)?,
        ];
        let delay = self.last(|l| l.startup_delay.as_ref()).copied().unwrap_or(0);
        Ok(Node {
            name: self.node.to_owned(),
            kind,
            image: self.last(|l| l.image.clone()),
            entrypoint: self.words("entrypoint", |l| l.entrypoint.as_deref())?,
            cmd: self.words("cmd", |l| l.cmd.as_deref())?,
            exec,
            binds: self.binds()?,
            tmpfs: self
                .all
                .iter()
                .flat_map(|l| l.tmpfs.iter().flat_map(|t| &t.0))
                .map(|(p, _)| p.into())
                .collect(),
            env: self.env()?,
            sysctls: self.sysctls()?,
            hostname: self.last(|l| l.hostname.clone()).unwrap_or_else(|| self.node.to_owned()),
            startup_delay: Duration::from_secs(u64::from(delay)),
            stages,
            healthcheck: self.healthcheck()?,
        })
    }

    /// Returns the value of the level with the highest precedence that sets it.
    fn last<'s, T>(&'s self, pick: impl Fn(&'s NodeConfig) -> Option<T>) -> Option<T> {
        self.all.iter().rev().find_map(|l| pick(l))
    }

    fn fault(&self, key: &str, needle: &str, text: String, next: &str) -> Invalid {
        self.context.fault(format!("{}.{key}", self.place), needle, text, next)
    }

    fn magic(&self, text: &str) -> String {
        text.replace("__clabNodeName__", self.node).replace("__clabLabName__", self.lab)
    }

    fn command(&self, key: &str, text: &str) -> Result<Vec<String>, Invalid> {
        match expand::split(&self.magic(text)) {
            Ok(words) if words.is_empty() => {
                Err(self.fault(key, "", "the command is empty".to_owned(), "remove it"))
            }
            Ok(words) => Ok(words),
            Err(why) => Err(self.fault(key, text, format!("{why} in `{text}`"), "close it")),
        }
    }

    fn words(
        &self,
        key: &str,
        pick: impl Fn(&NodeConfig) -> Option<&str>,
    ) -> Result<Option<Vec<String>>, Invalid> {
        let Some(text) = self.all.iter().rev().find_map(|l| pick(l)) else { return Ok(None) };
        self.command(key, text).map(Some)
    }

    /// Merges the binds of all levels; a bind replaces one of lower precedence with the same target.
    fn binds(&self) -> Result<Vec<Bind>, Invalid> {
        let mut binds: Vec<Bind> = Vec::new();
        for text in self.all.iter().flat_map(|l| l.binds.iter().flatten()) {
            let bind = self.bind("binds", text)?;
            binds.retain(|b| b.target != bind.target);
            binds.push(bind);
        }
        if let Some(text) = self.all.iter().find_map(|l| l.volumes.as_ref()?.first()) {
            let text = format!("Docker's volume {text} cannot be built from namespaces");
            return Err(self.fault("volumes", "volumes:", text, "use `binds`"));
        }
        Ok(binds)
    }

    fn bind(&self, key: &str, text: &str) -> Result<Bind, Invalid> {
        let expanded = self.magic(text);
        let parts: Vec<&str> = expanded.split(':').collect();
        let (source, target, options) = match *parts.as_slice() {
            [source, target] => (source, target, ""),
            [source, target, options] => (source, target, options),
            _ => {
                let fault = format!("`{text}` is no bind");
                return Err(self.fault(key, text, fault, "write SOURCE:TARGET or SOURCE:TARGET:ro"));
            }
        };
        let clean =
            Path::new(target).components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
        if !target.starts_with('/') || !clean || target == "/" {
            let fault = format!("the target `{target}` is no absolute path below /");
            return Err(self.fault(key, text, fault, "write SOURCE:/PATH/IN/NODE"));
        }
        let mut read_only = false;
        for option in options.split(',').filter(|o| !o.is_empty()) {
            match option {
                "ro" => read_only = true,
                "rw" | "z" | "Z" | "rprivate" | "private" | "rslave" | "slave" => {}
                other => {
                    let fault = format!("unknown bind option `{other}`");
                    return Err(self.fault(key, text, fault, "use ro or rw"));
                }
            }
        }
        let target = PathBuf::from(target);
        for (word, below) in [(NODE_DIR, self.node), (LAB_DIR, "")] {
            if let Some(rest) = source.strip_prefix(word) {
                let source = Path::new(below).join(rest.trim_start_matches('/'));
                return Ok(Bind { source, lab: true, target, read_only });
            }
        }
        let source = match source.strip_prefix("~/") {
            Some(rest) => match (self.context.lookup)("HOME") {
                Some(home) => Path::new(&home).join(rest),
                None => {
                    return Err(self.fault(key, text, "HOME is not set".to_owned(), "write the whole path"));
                }
            },
            None => self.context.file.parent().unwrap_or(Path::new("/")).join(source),
        };
        Ok(Bind { source, lab: false, target, read_only })
    }

    fn env(&self) -> Result<Vec<(String, String)>, Invalid> {
        let mut env: Vec<(String, String)> = Vec::new();
        let mut set = |key: &str, value: String| {
            env.retain(|(k, _)| k != key);
            env.push((key.to_owned(), value));
        };
        for file in self.all.iter().flat_map(|l| l.env_files.iter().flatten()) {
            let path = self.context.file.parent().unwrap_or(Path::new("/")).join(file);
            let text = std::fs::read_to_string(&path).map_err(|e| {
                self.fault(
                    "env-files",
                    file,
                    format!("{}: {e}", path.display()),
                    "make the file or remove it",
                )
            })?;
            for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
                if let Some((key, value)) = line.split_once('=') {
                    set(key.trim(), value.trim().trim_matches(['"', '\'']).to_owned());
                }
            }
        }
        for (key, value) in self.all.iter().flat_map(|l| l.env.iter().flat_map(|e| &e.0)) {
            if key.is_empty() || key.contains(['=', '\0']) {
                let text = format!("`{key}` is no variable name");
                return Err(self.fault("env", key, text, "use letters, digits and _"));
            }
            set(key, self.magic(&value.0));
        }
        Ok(env)
    }

    fn sysctls(&self) -> Result<Vec<(String, String)>, Invalid> {
        let mut sysctls: Vec<(String, String)> = Vec::new();
        for (key, value) in self.all.iter().flat_map(|l| l.sysctls.iter().flat_map(|e| &e.0)) {
            // Only these settings are per network namespace; others would change the whole machine.
            if !key.starts_with("net.") || key.contains(['/', ' ']) || key.contains("..") {
                let text = format!("`{key}` is no setting of a node's network");
                return Err(self.fault("sysctls", key, text, "use names that begin with net."));
            }
            sysctls.retain(|(k, _)| k != key);
            sysctls.push((key.clone(), value.0.clone()));
        }
        Ok(sysctls)
    }

    fn healthcheck(&self) -> Result<Option<Healthcheck>, Invalid> {
        let Some(raw) = self.last(|l| l.healthcheck.clone()) else { return Ok(None) };
        let test = match raw.test.split_first() {
            Some((how, rest)) if how == "CMD" && !rest.is_empty() => rest.to_vec(),
            Some((how, [command])) if how == "CMD-SHELL" => {
                vec!["/bin/sh".to_owned(), "-c".to_owned(), command.clone()]
            }
            _ => {
                let text = "`test` is no command".to_owned();
                return Err(self.fault(
                    "healthcheck.test",
                    "",
                    text,
                    "write [CMD, program, ...] or [CMD-SHELL, \"command\"]",
                ));
            }
        };
        Ok(Some(Healthcheck {
            test,
            interval: Duration::from_secs(raw.interval.unwrap_or(30)),
            retries: raw.retries.unwrap_or(3),
            start_period: Duration::from_secs(raw.start_period.unwrap_or(0)),
        }))
    }

    fn stage(&self, pick: fn(&RawStages) -> Option<&RawStage>, stage: Stage) -> Result<StagePlan, Invalid> {
        let mut plan = StagePlan::default();
        let key = format!("stages.{}", stage.name());
        for raw in self.all.iter().filter_map(|l| pick(l.stages.as_ref()?)) {
            for wait in &raw.wait_for {
                let Some(until) = Stage::ALL.into_iter().find(|s| s.name() == wait.stage) else {
                    let text = format!("there is no stage `{}`", wait.stage);
                    let next = "use create, create-links, configure, healthy or exit";
                    return Err(self.fault(&format!("{key}.wait-for"), &wait.stage, text, next));
                };
                plan.wait_for.push((wait.node.clone(), until));
            }
            let key = format!("{key}.exec");
            match &raw.exec {
                None => {}
                Some(RawStageExec::Phases(phases)) => {
                    for (list, into) in
                        [(&phases.on_enter, &mut plan.on_enter), (&phases.on_exit, &mut plan.on_exit)]
                    {
                        for command in list {
                            into.push(self.command(&key, command)?);
                        }
                    }
                }
                Some(RawStageExec::List(list)) => {
                    for item in list {
                        if item.target.as_deref().is_some_and(|t| t != "container") {
                            let text = "commands on this machine itself are not run".to_owned();
                            return Err(self.fault(&key, &item.command, text, "use target: container"));
                        }
                        let command = self.command(&key, &item.command)?;
                        match item.phase.as_str() {
                            "on-enter" => plan.on_enter.push(command),
                            "on-exit" => plan.on_exit.push(command),
                            other => {
                                let text = format!("there is no phase `{other}`");
                                return Err(self.fault(&key, other, text, "use on-enter or on-exit"));
                            }
                        }
                    }
                }
            }
        }
        if stage == Stage::Exit && !(plan.on_enter.is_empty() && plan.on_exit.is_empty()) {
            let text = "nothing can run in a node whose command has ended".to_owned();
            return Err(self.fault(
                &format!("{key}.exec"),
                "",
                text,
                "let another node wait for this one's exit",
            ));
        }
        if stage == Stage::Create && !plan.on_enter.is_empty() {
            let text = "nothing can run in a node before it exists".to_owned();
            return Err(self.fault(
                &format!("{key}.exec"),
                "",
                text,
                "use on-exit of create, or on-enter of create-links",
            ));
        }
        Ok(plan)
    }

    fn notes(&self, notes: &mut Vec<String>) {
        for level in &self.all {
            for key in level.without_effect() {
                let note = format!("{}: `{key}` has no effect in a lab of namespaces", self.node);
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
    }
}
