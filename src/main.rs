//! Arguments and wiring only.

fn main() -> std::process::ExitCode {
    tortie::cli::run()
}
