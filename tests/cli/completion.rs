//! What the tab key brings, in the shells that are here.

use std::process::Command;

use crate::rig::{Store, TORTIE, stdout, tortie};

/// Candidates for the last of these words.
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
    // Nobody answers: nothing, and at once.
    assert!(candidates(&["tortie", "--socket", "/nowhere", "bgp", "peer", ""]).is_empty());
}

#[test]
fn bash_completes() {
    let script = stdout(&tortie(&["completion", "bash"]));
    let dir = std::path::Path::new(TORTIE).parent().unwrap();
    let completed = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let quoted: Vec<String> = words.iter().map(|w| format!("'{w}'")).collect();
        let test = format!(
            "{script}\nCOMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({}); COMP_CWORD={}\n_tortie\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            quoted.join(" "),
            words.len() - 1
        );
        let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
        let output = Command::new("bash").args(["-c", &test]).env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed("tortie bgp pe"), ["peers", "peer"]);
    assert_eq!(completed("tortie completion "), ["bash", "zsh", "fish"]);
    // Bash takes words apart at `=`.
    assert_eq!(completed("tortie bgp peers --output=y"), ["yaml"]);
}

#[test]
fn fish_and_zsh_understand_their_scripts() {
    for (shell, words) in [("fish", vec!["--no-execute"]), ("zsh", vec!["-n"])] {
        let script = tortie(&["completion", shell]);
        assert!(script.status.success() && stdout(&script).contains("__complete"), "{script:?}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script");
        std::fs::write(&file, &script.stdout).unwrap();
        // Where the shell is not installed there is nothing to ask.
        if let Ok(output) = Command::new(shell).args(words).arg(&file).output() {
            assert!(output.status.success(), "{shell}: {output:?}");
        }
    }
}
