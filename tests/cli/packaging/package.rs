//! Installed files: the sample configuration, and the Debian package from its build to its purge.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::command::{TORTIE, stdout};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

#[test]
fn every_setting_of_the_sample_is_one_that_the_agent_takes() {
    let sample = std::fs::read_to_string(format!("{PACKAGING}/etc/tortie.toml")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tortie.toml");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        tortie::agent::Settings::from_file(&path).unwrap_or_else(|error| panic!("{error}\n{text}"))
    };
    // The sample sets nothing as installed; with its examples enabled it sets every option.
    assert_eq!(read(&sample), tortie::agent::Settings::default());
    let examples: Vec<&str> =
        sample.lines().filter_map(|l| l.strip_prefix('#').filter(|l| !l.starts_with(' '))).collect();
    let settings = read(&examples.join("\n"));
    settings.check().unwrap();
    let help = stdout(&crate::common::command::tortie(&["agent", "--help"]));
    for example in &examples {
        let (name, _) = example.split_once(" = ").unwrap();
        assert!(help.contains(&format!("--{name}")), "{name}");
    }
    assert!(examples.len() >= 15, "{examples:?}");
    // The program reads each variable of the environment file.
    let variables = std::fs::read_to_string(format!("{PACKAGING}/etc/tortie.env")).unwrap();
    let names = variables.lines().filter_map(|l| l.trim_start_matches('#').split_once('=')).map(|(n, _)| n);
    for name in names.filter(|n| n.starts_with("TORTIE_")) {
        assert!(help.contains(name), "{name}");
    }
}

/// Returns files and folders below `root`, except the package manager's own and its copies of /etc/group.
fn files(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_owned();
            if name.starts_with("var/lib/dpkg")
                || name == Path::new("etc/group-")
                || name == Path::new("etc/gshadow-")
            {
                continue;
            }
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            }
            found.insert(name);
        }
    }
    found
}

#[test]
fn the_package_installs_runs_and_leaves_nothing_when_purged() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let run = |program: &str, words: &[&str]| -> Output {
        // Includes the administrator's tools.
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        Command::new(program).args(words).env("PATH", path).env("DEB_COMPRESS", "none").output().unwrap()
    };
    let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success());
    if !has("dpkg") || !has("dpkg-deb") || !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs dpkg, and root to give files away");
    }
    let built = run(&format!("{PACKAGING}/deb.sh"), &[TORTIE, dir.path().to_str().unwrap()]);
    assert!(built.status.success(), "{built:?}");
    let package = stdout(&built).trim().to_owned();

    // A separate machine from the package manager's point of view.
    for folder in ["var/lib/dpkg/updates", "var/lib/dpkg/info", "etc"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    let group = "root:x:0:\n";
    for (file, text) in [("var/lib/dpkg/status", ""), ("etc/group", group), ("etc/gshadow", "root:*::\n")] {
        std::fs::write(root.join(file), text).unwrap();
    }
    let before = files(&root);
    let at = format!("--root={}", root.display());
    let dpkg = |words: &[&str]| {
        // The scripts honour DPKG_ROOT; the C library is this machine's.
        let output =
            run("dpkg", &[&[at.as_str(), "--force-script-chrootless", "--force-depends"], words].concat());
        assert!(output.status.success(), "{words:?}: {output:?}");
    };
    dpkg(&["--install", &package]);
    let program = root.join("usr/bin/tortie");
    let version = run(program.to_str().unwrap(), &["version"]);
    assert_eq!(stdout(&version), format!("tortie {}\n", env!("CARGO_PKG_VERSION")));
    let plugin = run(root.join("usr/lib/cni/tortie-cni").to_str().unwrap(), &[]);
    assert!(format!("{plugin:?}").contains("CNI"), "{plugin:?}");
    let mode = |name: &str| std::fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o777;
    for (name, wanted) in
        [("var/lib/tortie", 0o700), ("etc/tortie/secrets", 0o700), ("etc/tortie/tortie.toml", 0o640)]
    {
        assert_eq!(mode(name), wanted, "{name}");
    }
    let groups = || std::fs::read_to_string(root.join("etc/group")).unwrap();
    assert!(groups().contains("\ntortie:x:"), "{}", groups());
    for name in [
        "lib/systemd/system/tortie.service",
        "usr/share/bash-completion/completions/tortie",
        "usr/share/zsh/vendor-completions/_tortie",
        "usr/share/fish/vendor_completions.d/tortie.fish",
        "usr/share/man/man1/tortie.1.gz",
    ] {
        assert!(std::fs::metadata(root.join(name)).is_ok_and(|m| m.len() > 0), "{name}");
    }

    // Files of the administrator and of the agent remain until the package is purged.
    std::fs::write(root.join("etc/tortie/tortie.toml"), "as = 64999\n").unwrap();
    std::fs::write(root.join("var/lib/tortie/store.db"), "").unwrap();
    dpkg(&["--install", &package]);
    assert_eq!(std::fs::read_to_string(root.join("etc/tortie/tortie.toml")).unwrap(), "as = 64999\n");
    dpkg(&["--remove", "tortie"]);
    assert!(!program.exists() && root.join("var/lib/tortie/store.db").exists());
    assert!(root.join("etc/tortie/tortie.toml").exists());
    dpkg(&["--purge", "tortie"]);
    assert_eq!(files(&root), before);
    assert_eq!(groups(), group);
}

#[test]
#[ignore = "minutes: a release build of everything for musl, then it is tried"]
fn long_make_static_gives_one_file_that_needs_nothing() {
    let make = Command::new("make").arg("static").current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let said = format!("{}{}", stdout(&make), String::from_utf8_lossy(&make.stderr));
    if said.contains("musl-gcc is missing") {
        return eprintln!("skipped: {said}");
    }
    assert!(make.status.success() && said.contains(", static, "), "{said}");
    // The static package has no dependencies.
    let arch = std::env::consts::ARCH;
    let program = format!("{}/target/{arch}-unknown-linux-musl/release/tortie", env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let built = Command::new(format!("{PACKAGING}/deb.sh"))
        .args([&program, dir.path().to_str().unwrap()])
        .output()
        .unwrap();
    let deb = stdout(&built).trim().to_owned();
    let depends = Command::new("dpkg-deb").args(["-f", &deb, "Depends"]).output().unwrap();
    assert_eq!((stdout(&depends).trim(), depends.status.success()), ("", true), "{built:?}");
}

/// The check of `make static` detects a dynamic program.
#[test]
fn a_program_that_asks_for_a_loader_is_not_static() {
    if !Command::new("readelf").arg("--version").output().is_ok_and(|o| o.status.success()) {
        return eprintln!("skipped: no readelf (Debian: binutils)");
    }
    let output = Command::new(format!("{PACKAGING}/static.sh")).arg(TORTIE).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(crate::common::command::stderr(&output).contains("asks for a loader"), "{output:?}");
}
