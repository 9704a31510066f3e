//! Computes the ordered steps that build a [`Topology`]. Pure: the same file and programs give the same plan.
//!
//! The order follows containerlab: create, create-links, configure (command, then `exec`), and healthy or
//! exit if another node waits for them. Stages without dependencies are ordered by stage, then by position in
//! the file. A node with a start-up delay follows all nodes that need not wait for it. A link is created when
//! both of its ends have begun create-links, so a node may wait for the other end of its own link.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clab::{Bind, HOST, Kind, Link, Stage, Topology};
use crate::error::Invalid;
use crate::image::{self, Image};

/// Steps that build a lab.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Namespaces of each node, by node index; `None` for bridges and the host.
    pub spaces: Vec<Option<Space>>,
    /// Steps in execution order.
    pub steps: Vec<Step>,
}

/// Namespaces of a node, and the processes in them.
#[derive(Debug, Clone)]
pub struct Space {
    /// Name of the namespace, as in `ip netns`.
    pub name: String,
    /// Host name inside.
    pub hostname: String,
    /// Files and directories mounted from this machine.
    pub binds: Vec<Bind>,
    /// Paths of private tmpfs mounts.
    pub tmpfs: Vec<PathBuf>,
    /// Sysctls, set before links and commands.
    pub sysctls: Vec<(String, String)>,
    /// Environment variables of all processes inside.
    pub env: Vec<(String, String)>,
    /// Substitute for the image.
    pub image: Image,
    /// Command that runs for the lifetime of the node; empty for none.
    pub command: Vec<String>,
}

/// A step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Waits until this time after the start of the lab.
    NotBefore(Duration),
    /// Creates the namespaces of a node, or the bridge.
    Create(usize),
    /// Creates a link.
    Link(usize),
    /// Starts the command of a node.
    Start(usize),
    /// Runs a command in a node, which must succeed.
    Exec {
        /// Index of the node.
        node: usize,
        /// Program and arguments.
        command: Vec<String>,
    },
    /// Waits until a node reaches a stage: healthy or exit, since the other stages are completed by steps.
    Await {
        /// Index of the node.
        node: usize,
        /// Stage to wait for.
        stage: Stage,
    },
}

impl Plan {
    /// Computes the plan. `find` looks up programs by name or absolute path; see [`image::resolve`].
    ///
    /// # Errors
    /// Missing programs, and circular dependencies between nodes. Missing files of binds are *not* checked
    /// here.
    pub fn new(
        topology: &Topology,
        tortie: &Path,
        one_user: bool,
        find: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<Self, Invalid> {
        let mut spaces = Vec::with_capacity(topology.nodes.len());
        for node in &topology.nodes {
            if node.kind != Kind::Linux {
                spaces.push(None);
                continue;
            }
            let name = node.image.as_deref().unwrap_or_default();
            let image = image::resolve(name, tortie, one_user, find).map_err(|missing| Invalid {
                file: topology.file.clone(),
                line: None,
                place: format!("topology.nodes.{}.image", node.name),
                text: match missing.needs_users {
                    true => format!(
                        "{} drops to a user of its own, and a rootless lab has only one",
                        missing.program
                    ),
                    false => format!("{name} needs `{}`, which is not here", missing.program),
                },
                next: match missing.needs_users {
                    true => "run this with sudo, or use BIRD, FRR, GoBGP or Tortie there".to_owned(),
                    false => format!("run `make peers`, or install {}", missing.package),
                },
            })?;
            let command = match (&node.entrypoint, &node.cmd) {
                (None, None) => image.command.clone(),
                (entrypoint, cmd) => entrypoint.iter().chain(cmd).flatten().cloned().collect(),
            };
            let mut env: Vec<(String, String)> =
                image.env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            env.extend(node.env.iter().cloned());
            spaces.push(Some(Space {
                name: topology.namespace(&node.name),
                hostname: node.hostname.clone(),
                binds: node.binds.clone(),
                tmpfs: node.tmpfs.clone(),
                sysctls: node.sysctls.clone(),
                env,
                image,
                command,
            }));
        }
        Ok(Self { spaces, steps: steps(topology)? })
    }
}

fn steps(topology: &Topology) -> Result<Vec<Step>, Invalid> {
    let nodes = &topology.nodes;
    let number = |name: &str| nodes.iter().position(|n| n.name == name);
    // Last stage that each node must reach: configure, or a later one if another node waits for it or has
    // commands in it.
    let mut goal: Vec<usize> = nodes.iter().map(|_| 3).collect();
    for node in nodes {
        for (name, stage) in node.stages.iter().flat_map(|s| &s.wait_for) {
            if let Some(other) = number(name).and_then(|i| goal.get_mut(i)) {
                *other = (*other).max(index(*stage) + 1);
            }
        }
    }
    for (goal, node) in goal.iter_mut().zip(nodes) {
        let healthy = &node.stages[index(Stage::Healthy)];
        if node.healthcheck.is_some() && !(healthy.on_enter.is_empty() && healthy.on_exit.is_empty()) {
            *goal = (*goal).max(index(Stage::Healthy) + 1);
        }
    }
    let mut passed: Vec<usize> = vec![0; nodes.len()];
    let mut linking: Vec<bool> = vec![false; nodes.len()];
    let mut linked: Vec<bool> = vec![false; topology.links.len()];
    let mut clock = Duration::ZERO;
    let mut steps = Vec::new();
    loop {
        let open = |i: &usize| passed[*i] < goal[*i];
        let ready = |i: &usize| {
            let waits = &nodes[*i].stages[passed[*i]].wait_for;
            waits.iter().all(|(n, stage)| number(n).is_none_or(|o| passed[o] > index(*stage)))
        };
        let candidates = (0..nodes.len()).filter(|i| open(i) && ready(i));
        let Some(i) = candidates.min_by_key(|i| (nodes[*i].startup_delay, passed[*i], *i)) else {
            let stuck: Vec<usize> = (0..nodes.len()).filter(open).collect();
            return if stuck.is_empty() { Ok(steps) } else { Err(ring(topology, &stuck, &passed)) };
        };
        let node = &nodes[i];
        let stage = Stage::ALL[passed[i]];
        let plan = &node.stages[passed[i]];
        let run = |commands: &[Vec<String>], steps: &mut Vec<Step>| {
            steps.extend(commands.iter().map(|c| Step::Exec { node: i, command: c.clone() }));
        };
        if stage == Stage::Create && node.startup_delay > clock {
            clock = node.startup_delay;
            steps.push(Step::NotBefore(clock));
        }
        run(&plan.on_enter, &mut steps);
        match stage {
            Stage::Create if node.kind == Kind::Host => {}
            Stage::Create => steps.push(Step::Create(i)),
            Stage::CreateLinks => {
                linking[i] = true;
                for (l, link) in
                    topology.links.iter().enumerate().filter(|(l, _)| !linked[*l]).collect::<Vec<_>>()
                {
                    let present = |name: &str| name == HOST || number(name).is_some_and(|n| linking[n]);
                    let both = match link {
                        Link::Veth { ends: [a, b], .. } => present(&a.node) && present(&b.node),
                        Link::Dummy { end, .. } => present(&end.node),
                    };
                    if both {
                        linked[l] = true;
                        steps.push(Step::Link(l));
                    }
                }
            }
            Stage::Configure if node.kind == Kind::Linux => {
                steps.push(Step::Start(i));
                run(&node.exec, &mut steps);
            }
            Stage::Configure => {}
            Stage::Healthy if node.healthcheck.is_none() && goal[i] > index(Stage::Exit) => {}
            Stage::Healthy | Stage::Exit => steps.push(Step::Await { node: i, stage }),
        }
        run(&plan.on_exit, &mut steps);
        passed[i] += 1;
    }
}

fn index(stage: Stage) -> usize {
    match stage {
        Stage::Create => 0,
        Stage::CreateLinks => 1,
        Stage::Configure => 2,
        Stage::Healthy => 3,
        Stage::Exit => 4,
    }
}

fn ring(topology: &Topology, stuck: &[usize], passed: &[usize]) -> Invalid {
    let waits = stuck.iter().flat_map(|i| {
        let node = &topology.nodes[*i];
        let stage = Stage::ALL[passed[*i]];
        node.stages[passed[*i]].wait_for.iter().map(move |(other, until)| {
            format!("{} ({}) waits for {other} ({})", node.name, stage.name(), until.name())
        })
    });
    Invalid {
        file: topology.file.clone(),
        line: None,
        place: "topology.nodes".to_owned(),
        text: format!("these nodes wait for each other: {}", waits.collect::<Vec<_>>().join(", ")),
        next: "remove one `wait-for` of them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(nodes: &str, links: &str) -> Result<Vec<String>, String> {
        let text =
            format!("{{name: t, topology: {{defaults: {{kind: linux}}, nodes: {nodes}, links: {links}}}}}");
        let topology = Topology::parse(&text, Path::new("/t.clab.yml")).map_err(|e| e.to_string())?;
        let plan = Plan::new(&topology, Path::new("/tortie"), false, &|_| None).map_err(|e| e.to_string())?;
        let name = |i: &usize| topology.nodes[*i].name.as_str();
        let step = |s: &Step| match s {
            Step::NotBefore(d) => format!("at {}", d.as_secs()),
            Step::Create(i) => format!("create {}", name(i)),
            Step::Link(l) => format!("link {l}"),
            Step::Start(i) => format!("start {}", name(i)),
            Step::Exec { node, command } => format!("{}: {}", name(node), command.join(" ")),
            Step::Await { node, stage } => format!("{} {}", stage.name(), name(node)),
        };
        Ok(plan.steps.iter().map(step).collect())
    }

    #[test]
    fn all_are_made_then_linked_then_started() {
        let steps = plan("{a: {exec: [x]}, b: {}}", "[{endpoints: [\"a:eth1\", \"b:eth1\"]}]").unwrap();
        assert_eq!(steps, ["create a", "create b", "link 0", "start a", "a: x", "start b"]);
    }

    #[test]
    fn a_link_is_made_when_its_later_end_comes() {
        let nodes = "{h: {stages: {create: {wait-for: [{node: tor, stage: configure}]}}}, tor: {exec: [x]}}";
        // The node waits for the other end of its own link.
        let steps = plan(nodes, "[{endpoints: [\"h:eth1\", \"tor:eth1\"]}]").unwrap();
        assert_eq!(steps, ["create tor", "start tor", "tor: x", "create h", "link 0", "start h"]);
    }

    #[test]
    fn delays_come_last_and_waits_for_exit_and_health_are_steps() {
        let nodes = "{late: {startup-delay: 2}, job: {cmd: x}, \
            web: {healthcheck: {test: [CMD, ok]}}, \
            after: {stages: {create: {wait-for: [{node: job, stage: exit}]}, \
                             configure: {wait-for: [{node: web, stage: healthy}]}}}}";
        let steps = plan(nodes, "[]").unwrap();
        assert_eq!(
            steps,
            [
                "create job",
                "create web",
                "start job",
                "start web",
                "healthy web",
                "exit job",
                "create after",
                "start after",
                "at 2",
                "create late",
                "start late"
            ]
        );
    }

    #[test]
    fn rings_are_reported() {
        let nodes = "{a: {stages: {create: {wait-for: [{node: b, stage: create}]}}}, \
                      b: {stages: {create: {wait-for: [{node: a, stage: exit}]}}}}";
        let want = "/t.clab.yml: topology.nodes: these nodes wait for each other: a (create) waits for b (create), \
                    b (create) waits for a (exit); remove one `wait-for` of them";
        assert_eq!(plan(nodes, "[]").unwrap_err(), want);
    }

    #[test]
    fn levels_fold_into_nodes() {
        let text = "{name: t, topology: {\
            defaults: {kind: linux, env: {A: 1, B: 1}, exec: [one], binds: [\"x:/x\", \"y:/y\"], image: i0, cmd: c0}, \
            kinds: {linux: {env: {B: 2}, image: i1, sysctls: {net.a: 1}}}, \
            groups: {g: {env: {C: 3}, exec: [two], cmd: c2, sysctls: {net.a: 2}}}, \
            nodes: {n: {group: g, env: {C: \"4\"}, exec: [three __clabNodeName__], binds: [\"z:/x:ro\"]}}}}";
        let node = Topology::parse(text, Path::new("/d/t.clab.yml")).unwrap().nodes.remove(0);
        let pairs =
            |list: &[(String, String)]| list.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        assert_eq!(pairs(&node.env), ["A=1", "B=2", "C=4"]);
        assert_eq!(pairs(&node.sysctls), ["net.a=2"]);
        assert_eq!((node.image.as_deref(), node.cmd), (Some("i1"), Some(vec!["c2".to_owned()])));
        assert_eq!(node.exec.iter().map(|c| c.join(" ")).collect::<Vec<_>>(), ["one", "two", "three n"]);
        let binds: Vec<_> = node.binds.iter().map(|b| (b.source.to_str().unwrap(), b.read_only)).collect();
        assert_eq!(binds, [("/d/y", false), ("/d/z", true)]);
    }
}
