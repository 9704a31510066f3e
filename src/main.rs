//! Arguments and wiring only.

#[global_allocator]
static ALLOCATOR: tortie::agent::SystemAllocator = tortie::agent::SystemAllocator;

fn main() -> std::process::ExitCode {
    tortie::plugins::dispatch().unwrap_or_else(tortie::cli::run)
}
