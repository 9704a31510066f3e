//! Arguments and wiring only.

#[global_allocator]
static HEAP: tortie::agent::Heap = tortie::agent::Heap;

fn main() -> std::process::ExitCode {
    tortie::cli::run()
}
