//! Maps image names to substitute programs of this machine. No I/O: the caller finds the programs.

use std::path::{Path, PathBuf};

/// Programs and files that a node needs to run an image's commands without the image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Default command of the image, used if the lab file has neither `entrypoint` nor `cmd`. If empty, the
    /// node runs no command.
    pub command: Vec<String>,
    /// Programs: name in the image, and path on this machine.
    pub programs: Vec<(&'static str, PathBuf)>,
    /// Scripts by name, installed in the directory of the programs.
    pub scripts: Vec<(&'static str, String)>,
    /// Users and groups that the programs need.
    pub users: Vec<User>,
    /// Directories of the image, relative to the node's private `/run`.
    pub folders: Vec<&'static str>,
    /// Files of the image: path and content.
    pub files: Vec<(&'static str, &'static str)>,
    /// Environment variables that the image sets.
    pub env: Vec<(&'static str, &'static str)>,
}

/// A user with a group of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Name of the user and of the group.
    pub name: &'static str,
    /// Home directory, which OpenBGPD uses as chroot.
    pub home: &'static str,
    /// Additional group, of which root is a member too.
    pub shared_group: Option<&'static str>,
}

/// A program that was not found on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingProgram {
    /// Name of the program.
    pub program: &'static str,
    /// Debian package that contains the program.
    pub package: &'static str,
    /// True if the program switches to its own user, and therefore cannot run where only one user exists.
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

/// FRR's daemons have a prefix in the directory of unpacked peers, because OpenBGPD has a `bgpd` too.
const FRR: &[(&str, &[&str])] = &[
    ("zebra", &["frr-zebra", "/usr/lib/frr/zebra"]),
    ("bgpd", &["frr-bgpd", "/usr/lib/frr/bgpd"]),
    ("vtysh", &["vtysh"]),
];

/// Returns the substitute for `image`. `find` looks up a program by name or absolute path, and `tortie` is
/// this program's binary. With `one_user` only user 0 exists (a rootless lab).
///
/// An unknown image is not an error: its node has the programs of this machine.
///
/// # Errors
/// If the image is known and one of its programs is missing, or cannot run with a single user.
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
                // User names of the upstream project and of Debian.
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
        // FRR can be configured to run as root, OpenBGPD cannot.
        assert!(resolve("openbgpd", Path::new("/t"), true, &everything).unwrap_err().needs_users);
        assert!(resolve("frr", Path::new("/t"), true, &everything).is_ok());
    }
}
