#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tortie_bgp_fuzz::bfd(data));
