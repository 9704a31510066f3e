//! Entry point of the `tortie` binary: selects the plugin or the command line, and sets the global allocator.

#[global_allocator]
static ALLOCATOR: tortie::agent::SystemAllocator = tortie::agent::SystemAllocator;

fn main() -> std::process::ExitCode {
    tortie::plugins::dispatch().unwrap_or_else(tortie::cli::run)
}
