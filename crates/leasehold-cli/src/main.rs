//! `leasehold`: runs commands under a distributed lock, and shows who holds a lock.
#![forbid(unsafe_code)]

mod cli;
mod cmd;
mod duration;
mod exit_code;
mod failure;
mod input;
mod logging;
mod mapping;
mod output;
mod server;
mod signals;
mod usage;

use std::process::ExitCode;

fn main() -> ExitCode {
    let exit = run();
    output::flush();
    exit.into()
}

fn run() -> exit_code::Exit {
    let cli = match usage::parse() {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    if cli.quiet {
        output::be_quiet();
    }
    if cli.verbose > 0 {
        output::be_verbose();
    }
    logging::start(&cli);
    server::set_access(server::Access {
        label: cli.label(),
        named_label: cli.connection.label.clone(),
        prefix: cli.connection.prefix.clone(),
        password_file: cli.connection.password_file.clone(),
        map: cli.connection.map.clone(),
        tls: cli.connection.tls.clone(),
    });
    match cmd::run(cli) {
        Ok(exit) => exit,
        Err(failure) => {
            output::tell(&failure);
            failure.exit()
        }
    }
}
