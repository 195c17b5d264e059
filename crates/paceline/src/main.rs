//! The `paceline` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    paceline::main()
}
