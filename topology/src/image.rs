//! From an image's name to the program of this machine that stands for it. No I/O: the caller finds programs.

use std::path::{Path, PathBuf};

/// What a node needs so that an image's commands work in it without the image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// The image's own command, used where the lab file gives neither `entrypoint` nor `cmd`; empty = the node idles.
    pub command: Vec<String>,
    /// Programs by the name that the image has them under, and where they are here.
    pub programs: Vec<(&'static str, PathBuf)>,
    /// Scripts by name, put beside the programs.
    pub scripts: Vec<(&'static str, String)>,
    /// Users and groups that the programs ask for.
    pub users: Vec<User>,
    /// Folders that the image has, below the node's private `/run`.
    pub folders: Vec<&'static str>,
    /// Small files that the image has: path and content.
    pub files: Vec<(&'static str, &'static str)>,
    /// Environment that the image sets.
    pub env: Vec<(&'static str, &'static str)>,
}

/// A user with a group of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The name of user and group.
    pub name: &'static str,
    /// The home folder; OpenBGPD shuts itself in there.
    pub home: &'static str,
    /// A further group, with root in it as well.
    pub shared_group: Option<&'static str>,
}

/// A program that no folder has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingProgram {
    /// The program.
    pub program: &'static str,
    /// The Debian package that brings it.
    pub package: &'static str,
    /// True when the program drops to a user of its own and so cannot run where only one user exists.
    pub needs_users: bool,
}

/// Starts FRR as its image does, with the integrated configuration, and ends when bgpd ends.
const FRR_START: &str = r#"#!/bin/sh
zebra -d -u root -g root -P 0 || exit 1
bgpd -u root -g root -P 0 &
pid=$!
trap 'kill $pid' TERM INT
until [ -S /run/frr/bgpd.vty ] && [ -S /run/frr/zebra.vty ]; do kill -0 $pid || exit 1; sleep 0.02; done
[ -e /etc/frr/frr.conf ] && vtysh -b
wait $pid
"#;

/// The folder of unpacked peers has FRR's daemons under names that tell them from OpenBGPD's `bgpd`.
const FRR: &[(&str, &[&str])] = &[
    ("zebra", &["frr-zebra", "/usr/lib/frr/zebra"]),
    ("bgpd", &["frr-bgpd", "/usr/lib/frr/bgpd"]),
    ("vtysh", &["vtysh"]),
];

/// Finds what stands for `image`. `find` looks a program up by name or by absolute path; `tortie` is our own binary.
/// With `one_user` only user 0 exists (a rootless lab).
///
/// An image nobody knows is not an error: a node of it has this machine's programs.
///
/// # Errors
/// When the image is known and a program of it is not here, or cannot run with one user.
pub fn resolve(
    image: &str,
    tortie: &Path,
    one_user: bool,
    find: &dyn Fn(&str) -> Option<PathBuf>,
) -> Result<Image, MissingProgram> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let repository = image.split('@').next().unwrap_or_default();
    let name = repository.rsplit('/').next().unwrap_or_default();
    let name = name.split(':').next().unwrap_or_default();
    let programs = |package: &'static str, names: &[(&'static str, &[&str])]| {
        names
            .iter()
            .map(|(program, places)| match places.iter().find_map(|p| find(p)) {
                Some(path) => Ok((*program, path)),
                None => Err(MissingProgram { program, package, needs_users: false }),
            })
            .collect::<Result<Vec<_>, _>>()
    };
    let users_needed = |program: &'static str, package: &'static str| match one_user {
        true => Err(MissingProgram { program, package, needs_users: true }),
        false => Ok(()),
    };
    Ok(match name {
        n if n.starts_with("tortie") => Image {
            command: words("tortie agent"),
            programs: vec![("tortie", tortie.to_owned())],
            ..Image::default()
        },
        n if n.starts_with("bird") => Image {
            command: words("bird -f -c /etc/bird/bird.conf -s /run/bird/bird.ctl"),
            programs: programs("bird2", &[("bird", &["bird"]), ("birdc", &["birdc"])])?,
            folders: vec!["bird"],
            ..Image::default()
        },
        n if n.starts_with("frr") => Image {
            command: words("frr-start"),
            programs: programs("frr", FRR)?,
            scripts: vec![("frr-start", FRR_START.to_owned())],
            users: vec![User { name: "frr", home: "/nonexistent", shared_group: Some("frrvty") }],
            folders: vec!["frr"],
            files: vec![(
                "/etc/pam.d/frr",
                "auth sufficient pam_permit.so\naccount sufficient pam_permit.so\n",
            )],
            ..Image::default()
        },
        n if n.starts_with("gobgp") => Image {
            command: words("gobgpd -f /etc/gobgp/gobgpd.toml"),
            programs: programs("gobgpd", &[("gobgpd", &["gobgpd"]), ("gobgp", &["gobgp"])])?,
            ..Image::default()
        },
        n if n.starts_with("openbgpd") || n == "bgpd" => {
            users_needed("bgpd", "openbgpd")?;
            let names: &[(&str, &[&str])] =
                &[("bgpd", &["openbgpd", "/usr/sbin/openbgpd", "/usr/sbin/bgpd"]), ("bgpctl", &["bgpctl"])];
            Image {
                command: words("bgpd -d -f /etc/bgpd/bgpd.conf"),
                programs: programs("openbgpd", names)?,
                // Upstream's user and Debian's.
                users: ["_bgpd", "_openbgpd"]
                    .map(|name| User { name, home: "/run/openbgpd", shared_group: None })
                    .to_vec(),
                folders: vec!["openbgpd"],
                ..Image::default()
            }
        }
        n if n.starts_with("exabgp") => Image {
            command: words("exabgp /etc/exabgp/exabgp.conf"),
            programs: programs("exabgp", &[("exabgp", &["exabgp"])])?,
            env: vec![("exabgp_daemon_drop", "false"), ("exabgp_daemon_user", "root")],
            ..Image::default()
        },
        n if n.starts_with("etcd") => Image {
            command: words("etcd"),
            programs: programs(
                "etcd-server and etcd-client",
                &[("etcd", &["etcd"]), ("etcdctl", &["etcdctl"])],
            )?,
            ..Image::default()
        },
        _ => Image::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything(name: &str) -> Option<PathBuf> {
        Some(Path::new("/peers").join(name))
    }

    fn command(image: &str) -> String {
        resolve(image, Path::new("/t"), false, &everything).unwrap().command.join(" ")
    }

    #[test]
    fn images_by_the_last_part_of_their_name() {
        assert_eq!(command("ghcr.io/tortie-net/tortie:0.1.0"), "tortie agent");
        assert_eq!(command("tortie"), "tortie agent");
        assert_eq!(command("localhost:5000/tortie@sha256:00"), "tortie agent");
        assert_eq!(command("quay.io/frrouting/frr:8.4.4"), "frr-start");
        assert_eq!(command("bird:2.0.12").split(' ').next(), Some("bird"));
        assert_eq!(command("localhost/gobgp:3.10").split(' ').next(), Some("gobgpd"));
        assert_eq!(command("openbgpd/openbgpd:7.7").split(' ').next(), Some("bgpd"));
        assert_eq!(command("alpine:3"), "");
        assert_eq!(command("tor/frridge-is-frr/alpine"), "");
    }

    #[test]
    fn openbgpd_and_frr_keep_their_bgpd_apart() {
        let of = |image| resolve(image, Path::new("/t"), false, &everything).unwrap().programs;
        assert!(of("frr").contains(&("bgpd", "/peers/frr-bgpd".into())));
        assert!(of("openbgpd").contains(&("bgpd", "/peers/openbgpd".into())));
    }

    #[test]
    fn a_known_image_without_its_program_names_the_package() {
        let nothing = |_: &str| None;
        let missing = resolve("bird:2", Path::new("/t"), false, &nothing).unwrap_err();
        assert_eq!((missing.program, missing.package, missing.needs_users), ("bird", "bird2", false));
        // FRR can be told to stay root, OpenBGPD cannot.
        assert!(resolve("openbgpd", Path::new("/t"), true, &everything).unwrap_err().needs_users);
        assert!(resolve("frr", Path::new("/t"), true, &everything).is_ok());
    }
}
