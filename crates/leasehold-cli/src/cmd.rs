//! The sub-commands.

mod acquire;
mod changes;
mod completions;
mod demo;
mod doctor;
mod elect;
mod fence;
mod hold;
mod latch;
mod leader;
mod ls;
pub(crate) mod pages;
mod release;
mod run;
mod set_limit;
mod show;
#[cfg(feature = "top")]
mod top;
mod watch;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::cli::{self, Cli, Command};
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::server::Server;
use crate::signals::Signals;

/// Runs the sub-command of the command line.
pub(crate) fn run(cli: Cli) -> Result<Exit, Failure> {
    match cli.command {
        Command::Run(args) => run::run(&args, &servers(&args.wanted, cli.connection.redis)?),
        Command::Elect(args) => elect::elect(&args, &Server::find(cli.connection.redis)?.shared()?),
        Command::Leader(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(leader::leader(args, server))
        }
        Command::Hold(args) => {
            let servers = servers(&args.wanted, cli.connection.redis)?;
            finish(hold::hold(args, servers))
        }
        Command::RunDeadman(args) => run::deadman::main(&args),
        Command::RunLaunch(args) => run::launch::main(&args),
        Command::Show(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(show::show(&args, &server))
        }
        Command::Ls(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(ls::ls(args, server))
        }
        Command::Watch(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(watch::watch(args, server))
        }
        #[cfg(not(feature = "top"))]
        Command::Top(_) => Err(Failure::not_built("the sub-command top", "top")),
        #[cfg(feature = "top")]
        Command::Top(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(top::top(args, server))
        }
        Command::Release(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(release::release(args, server))
        }
        Command::Doctor(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(doctor::doctor(args, server))
        }
        Command::Fence(args) => finish(fence::fence(args)),
        Command::Completions(args) => finish(completions::completions(args.shell)),
        Command::Names(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(completions::names(args, server))
        }
        Command::Man(args) => finish(pages::man(args.out.as_deref())),
        Command::SetLimit(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(set_limit::set_limit(args, &server))
        }
        Command::Latch(args) => {
            let server = Server::find(cli.connection.redis)?.shared()?;
            finish(latch::latch(args, &server))
        }
        Command::Demo(args) => {
            // Only the command line can name a server for the demo. New users run the demo first,
            // and it must not write to a server that the environment names.
            let server = cli
                .connection
                .redis
                .map(|url| Server::find(Some(url)))
                .transpose()?;
            finish(demo::demo(args, server))
        }
        Command::DemoWorker(args) => {
            let server = Server::find(cli.connection.redis)?;
            finish(demo::process::main(args, &server))
        }
    }
}

/// Returns the servers that store a command's lock: one server, or all servers of a `RedLock`.
fn servers(args: &cli::Wanted, flag: Option<OsString>) -> Result<Vec<Server>, Failure> {
    if args.redlock.is_empty() {
        return Ok(vec![Server::find(flag)?.shared()?]);
    }
    let urls = args.redlock.iter();
    let servers = urls.map(|url| Server::named("--redlock", url.clone())?.shared());
    let servers: Vec<_> = servers.collect::<Result<_, _>>()?;
    if servers.len() == 1 {
        return Err(Failure::usage(
            "--redlock names only one server, and a majority takes three or more; repeat --redlock for \
             each server, or name a single server with --redis",
        ));
    }
    Ok(servers)
}

/// Creates a runtime with its own threads, so that the calling thread can't delay renewals.
fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("can't start a runtime", error))
}

/// Runs `work` until it is done or a signal arrives.
async fn until_signal(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        exit = work => exit,
        signal = signals.next() => Ok(Exit::Signal(signal as i32)),
    }
}

fn finish(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = runtime()?;
    let result = runtime.block_on(work);
    shut_down(runtime);
    result
}

/// Shuts the runtime down. Dropping it would wait for a slow look-up of a host name.
fn shut_down(runtime: Runtime) {
    runtime.shutdown_timeout(Duration::from_millis(50));
}

/// Parses a name on the command line, for a sub-command that shows or releases it.
fn name_to_look_at(name: OsString) -> Result<String, Failure> {
    name.into_string().map_err(|name| {
        Failure::usage(format!(
            "the name is not UTF-8, so leasehold can't use it; {}",
            ls::by_hand(name.as_bytes())
        ))
    })
}

/// Parses a lock's name on the command line. The library reports other errors in the name when the
/// lock is used.
fn name_of_lock(name: OsString) -> Result<String, Failure> {
    name.into_string().map_err(|name| {
        Failure::usage(format!(
            "the lock's name `{}` is not UTF-8; choose another name",
            crate::output::Shown(&name.to_string_lossy())
        ))
    })
}
