//! Completion candidates in the installed shells.

use std::path::PathBuf;
use std::process::Command;

use crate::common::command::{Store, TORTIE, stdout, tortie};

/// Returns the candidates for the last of these words.
fn candidates(words: &[&str]) -> Vec<String> {
    let output = tortie(&[&["__complete", "--"], words].concat());
    assert!(output.status.success(), "{output:?}");
    stdout(&output).lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

#[test]
fn names_come_from_the_store() {
    let store = Store::with(&[
        ("/calico/bgp/v1/host/rack1-n03/ip_addr_v4", "192.0.2.13"),
        ("/calico/bgp/v1/host/rack1-n05/ip_addr_v4", "192.0.2.15"),
        ("/calico/v1/ipam/v4/pool/10.244.0.0-16", r#"{"cidr":"10.244.0.0/16"}"#),
    ]);
    let with = |words: &[&str]| candidates(&[&["tortie", "--datastore", &store.url], words].concat());
    assert_eq!(with(&["node", "show", ""]), ["rack1-n03", "rack1-n05"]);
    assert_eq!(with(&["node", "show", "rack1-n05"]), ["rack1-n05"]);
    assert_eq!(with(&["store", "get", "/calico/v1/"]), ["/calico/v1/ipam/"]);
    assert_eq!(with(&["store", "get", ""]), ["/calico/bgp/", "/calico/v1/"]);
    // Without an agent there are no candidates, and no delay.
    assert!(candidates(&["tortie", "--socket", "/nowhere", "bgp", "peer", ""]).is_empty());
}

#[test]
fn bash_completes() {
    let script = stdout(&tortie(&["completion", "bash"]));
    let completed = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let quoted: Vec<String> = words.iter().map(|w| format!("'{w}'")).collect();
        let test = format!(
            "{script}\nCOMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({}); COMP_CWORD={}\n_tortie\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            quoted.join(" "),
            words.len() - 1
        );
        let output = Command::new("bash").args(["-c", &test]).env("PATH", path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed("tortie bgp pe"), ["peers", "peer"]);
    assert_eq!(completed("tortie completion "), ["bash", "zsh", "fish"]);
    // Bash splits words at `=`.
    assert_eq!(completed("tortie bgp peers --output=y"), ["yaml"]);
}

/// Returns a shell of `make peers`, else of this machine. Without one the test is skipped; in CI that is a
/// failure.
fn shell(name: &str) -> Option<PathBuf> {
    let peers = std::env::var_os("TORTIE_PEERS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        peers.into_iter().chain(std::env::split_paths(&path)).map(|dir| dir.join(name)).find(|p| p.exists());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "{name} is not here: make peers");
        eprintln!("skipped: {name} is not here: make peers");
    }
    found
}

/// Returns a PATH that includes the program.
fn path() -> String {
    let dir = std::path::Path::new(TORTIE).parent().unwrap();
    format!("{}:{}", dir.display(), std::env::var("PATH").unwrap())
}

#[test]
fn fish_completes() {
    let Some(fish) = shell("fish") else { return };
    let script = stdout(&tortie(&["completion", "fish"]));
    let completed = |line: &str| {
        let test = format!("{script}\ncomplete -C '{line}'");
        let output =
            Command::new(&fish).args(["--no-config", "-c", &test]).env("PATH", path()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        stdout(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let peers = completed("tortie bgp pe");
    assert_eq!(peers.len(), 2, "{peers:?}");
    assert!(peers.iter().any(|line| line == "peer\tShow one session in detail"), "{peers:?}");
    assert_eq!(completed("tortie completion z"), ["zsh"]);
    assert_eq!(completed("tortie bgp peers --output=y"), ["--output=yaml\tFor machines and people"]);
    assert!(completed("tortie ").len() > 20);
}

/// Zsh completes on a terminal only: its line editor receives lines, and its builtin for candidates is
/// intercepted.
#[test]
fn zsh_completes() {
    const LISTEN: &str = r#"
compadd() { local -a hits; builtin compadd -A hits "$@"; print -rl -- $hits >> $OUT; builtin compadd "$@" }
press() {
  for line in "tortie bgp pe" "tortie completion z" "tortie status --all" "tortie bgp peers --output=y"; do
    BUFFER=$line; CURSOR=$#BUFFER
    zle complete-word
    print -r -- "> $BUFFER" >> $OUT
  done
  exit
}
zle -N zle-line-init press
"#;
    let Some(zsh) = shell("zsh") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (site, out) = (dir.path().join("site"), dir.path().join("out"));
    std::fs::create_dir(&site).unwrap();
    // As the first line of the script describes.
    std::fs::write(site.join("_tortie"), tortie(&["completion", "zsh"]).stdout).unwrap();
    let rc = format!("fpath+=({})\nautoload -Uz compinit; compinit -u -D\n{LISTEN}", site.display());
    std::fs::write(dir.path().join(".zshrc"), rc).unwrap();
    let command = format!("'{}' -d -i", zsh.display());
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).stdin(std::process::Stdio::null());
    script.env("ZDOTDIR", dir.path()).env("OUT", &out).env("PATH", path()).env("TERM", "xterm");
    let output = script.output().expect("script of bsdutils");
    let said = std::fs::read_to_string(&out).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let lines: Vec<&str> = said.lines().collect();
    let after =
        |line: &str| lines.iter().position(|l| *l == line).unwrap_or_else(|| panic!("no {line:?} in {said}"));
    let first = after("> tortie bgp peer");
    assert!(lines[..first].contains(&"peers") && lines[..first].contains(&"peer"), "{said}");
    after("> tortie completion zsh ");
    after("> tortie status --all-nodes ");
    after("> tortie bgp peers --output=yaml ");
}
