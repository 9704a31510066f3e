//! Arguments and wiring only.

#[global_allocator]
static HEAP: tortie::agent::Heap = tortie::agent::Heap;

fn main() -> std::process::ExitCode {
    tortie::plugins::dispatch().unwrap_or_else(tortie::cli::run)
}
