//! The agent's container image: built by packaging/docker/image.sh from the program alone, and run by a real
//! dockerd without any registry.

use std::path::Path;
use std::process::Command;

use tortie_topology::Signal;

use crate::common::hosts::{TORTIE, within};
use crate::engines::docker::Docker;
use crate::engines::site::{PATIENCE, Site};

const IMAGE_SH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/docker/image.sh");

const ARCHIVE_SH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/docker/archive.sh");

const DOCKERFILE: &str = include_str!("../../../packaging/docker/Dockerfile");

#[test]
#[ignore = "half a minute: two dockerds and an image"]
fn long_the_agent_runs_from_its_own_image() {
    let Some(mut site) = Site::up(&["dockerd", "docker", "busybox"], "") else { return };
    let docker = Docker::up(&site, &[]);
    let (there, here) = site.shared();
    let program = here.join("program");
    // Most of the file is debug information.
    let stripped = Command::new("strip").arg("-o").args([&program, Path::new(TORTIE)]).status();
    if !stripped.is_ok_and(|status| status.success()) {
        crate::common::command::copy_program(TORTIE, &program);
    }
    let made =
        Command::new(IMAGE_SH).arg(&program).arg("--context").arg(here.join("context")).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    site.run(1, &["docker", "build", "-t", "tortie:test", &format!("{there}/context")]);
    // The image contains no shell.
    assert!(site.try_run(1, &["docker", "run", "--rm", "--entrypoint", "/bin/sh", "tortie:test"]).is_err());
    let version = site.run(1, &["docker", "run", "--rm", "--network", "none", "tortie:test", "version"]);
    assert_eq!(version, format!("tortie {}", env!("CARGO_PKG_VERSION")));
    // The archive of a release is the same image, without a docker to build it.
    let archive = here.join("image.tar");
    let written = Command::new(ARCHIVE_SH).args([&program, &archive]).arg("tortie:loaded").output().unwrap();
    assert!(written.status.success(), "{written:?}");
    site.run(1, &["docker", "load", "-i", &format!("{there}/image.tar")]);
    let loaded = site.run(1, &["docker", "run", "--rm", "--network", "none", "tortie:loaded", "version"]);
    assert_eq!(loaded, version);
    let settings = |image: &str| {
        let form = "{{json .Config.Entrypoint}} {{json .Config.Cmd}} {{json .Config.Env}} {{json .Config.Volumes}} {{.Config.StopSignal}}";
        site.run(1, &["docker", "image", "inspect", "-f", form, image])
    };
    assert_eq!(settings("tortie:loaded"), settings("tortie:test"));

    // Replaces the agent of host 1.
    let up = |site: &Site| {
        within(PATIENCE, "the session of host 2 with host 1", || {
            let peers = site.hosts.sessions(2);
            if peers.values().all(|(state, ..)| state == "Established") && !peers.is_empty() {
                Ok(())
            } else {
                Err(format!("{peers:?}"))
            }
        });
    };
    up(&site);
    let routes = site.hosts.routes(1);
    site.hosts.signal("host1", Signal::TERM);
    site.hosts.until_ended(1);
    let volume = format!("{there}:{there}");
    let store = format!("TORTIE_DATASTORE=sqlite:{there}/store.db");
    // The flags documented in the Dockerfile, up to the host's paths.
    let (_, line) = DOCKERFILE.split_once("docker run -d --name tortie --restart unless-stopped").unwrap();
    let (flags, _) = line.split_once(" -v ").unwrap();
    let flags: Vec<&str> = flags.split_whitespace().filter(|word| !matches!(*word, "\\" | "#")).collect();
    assert!(flags.contains(&"NET_ADMIN") && !flags.contains(&"--privileged"), "{flags:?}");
    let of_here = ["-v", "/run/tortie:/run/tortie", "-v", &volume, "-e", &store, "-e", "TORTIE_NODE=host1"];
    site.run(
        1,
        &[&["docker", "run", "-d", "--name", "agent"], &flags[..], &of_here, &["tortie:test"]].concat(),
    );
    within(PATIENCE, "the agent of the container is ready", || {
        site.try_run(1, &["docker", "exec", "agent", "/usr/bin/tortie", "status"]).map(|_| ())
    });
    up(&site);
    assert_eq!(site.hosts.routes(1), routes);
    let status = site.run(1, &["docker", "exec", "agent", "/usr/bin/tortie", "status", "-o", "json"]);
    for code in ["missing-capability", "listen", "enforcement"] {
        assert!(!status.contains(&format!("\"code\": \"{code}\"")), "{status}");
    }
    // `docker stop` corresponds to `systemctl stop`.
    site.run(1, &["docker", "stop", "-t", "20", "agent"]);
    assert_eq!(site.run(1, &["docker", "inspect", "-f", "{{.State.ExitCode}}", "agent"]), "0");
    assert_eq!(site.hosts.routes(1), routes);
    drop(docker);
}
