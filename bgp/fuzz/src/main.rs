//! All targets under libFuzzer; the environment variable `FUZZ_TARGET` selects one (see `run`).

#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<tortie_bgp_fuzz::Law> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = tortie_bgp_fuzz::TARGETS.iter().find(|(known, _)| *known == name);
    let Some((_, law)) = found else {
        let known: Vec<&str> = tortie_bgp_fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("FUZZ_TARGET is {name:?}, and the targets are {}", known.join(" "));
        std::process::exit(2);
    };
    *law
});

libfuzzer_sys::fuzz_target!(init: LazyLock::force(&TARGET), |data: &[u8]| TARGET(data));
