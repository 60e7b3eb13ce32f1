//! `leasehold top`: shows held locks, live.

mod draw;
mod screen;
mod state;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use leasehold::Client;
use leasehold::inspect::{LeftOut, Listed};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use self::screen::Screen;
use self::state::{Answer, State};
use super::doctor::brief;
use super::ls::{all_denied, kind_of};
use super::until_signal;
use crate::cli::Top;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::server::Server;

/// The maximum number of names to list. No user reads more.
const MOST_NAMES: usize = 1000;
/// The interval at which the doctor examines the servers.
const EXAMINED_EVERY: Duration = Duration::from_secs(60);

pub(crate) async fn top(args: Top, server: Server) -> Result<Exit, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top draws on a terminal; elsewhere use leasehold ls --json, or leasehold watch",
        ));
    }
    let client = server.connect(None).await?;
    // Query once before the terminal is changed, so that a failure is printed as usual.
    let first = look(&client, &args).await?;
    if first.found.is_empty() && first.others == 0 && first.left_out.denied > 0 {
        return Err(all_denied(client.address(), first.left_out.denied));
    }
    let mut screen = Screen::open()?;
    let mut state = State::new(client.address().to_owned());
    state.looked(first, Instant::now());
    let end = until_signal(follow(&client, &args, &mut screen, state)).await;
    screen.close().await;
    end
}

/// The result of a query: the names to show, and how many names are left out.
#[derive(Default)]
struct Looked {
    found: Vec<Listed>,
    /// Number of names that are not of the wanted kind.
    others: u64,
    left_out: LeftOut,
    /// The number of keys that were examined and the total number of keys, if these numbers differ.
    keys: Option<(u64, u64)>,
}

async fn look(client: &Client, args: &Top) -> leasehold::Result<Looked> {
    let (mut names, mut looked) = (client.list(&args.pattern), Looked::default());
    while let Some(listed) = names.next().await {
        let listed = listed?;
        if args
            .kind
            .is_none_or(|kind| kind_of(&listed.info) == Some(kind))
        {
            looked.found.push(listed);
        } else {
            looked.others += 1;
        }
        if looked.found.len() == MOST_NAMES {
            looked.keys = Some(names.progress());
            break;
        }
    }
    looked.left_out = names.left_out();
    Ok(looked)
}

async fn follow(
    client: &Client,
    args: &Top,
    screen: &mut Screen,
    mut state: State,
) -> Result<Exit, Failure> {
    let mut keys = keys();
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut warnings = warnings(client.clone());
    let mut next_look = Instant::now() + args.every;
    let mut is_drawn = false;
    loop {
        tokio::select! {
            drawn = screen.draw(|frame| draw::draw(frame, &state, colour)), if !is_drawn => {
                drawn?;
                is_drawn = true;
                continue;
            }
            key = keys.recv() => match key.and_then(|key| state.pressed(key)) {
                Some(Answer::Quit) => return Ok(Exit::Success),
                Some(Answer::Release { name, hold }) => {
                    let result = client.force_release(&name, &hold).await;
                    state.released(&name, &hold, result);
                    next_look = Instant::now();
                }
                Some(Answer::Drawn) => {}
                // The terminal no longer exists.
                None => return Ok(Exit::Success),
            },
            Ok(()) = warnings.changed() => {
                state.warning.clone_from(&warnings.borrow_and_update());
            }
            () = sleep_until(next_look), if !state.is_paused() => {
                match look(client, args).await {
                    Ok(looked) => state.looked(looked, Instant::now()),
                    Err(error) => state.failed(&error),
                }
                next_look = Instant::now() + args.every;
            }
        }
        is_drawn = false;
    }
}

/// Runs the doctor now and at intervals, and returns a channel with its latest warning.
fn warnings(client: Client) -> watch::Receiver<Option<String>> {
    let (told, warnings) = watch::channel(None);
    tokio::spawn(async move {
        while told.send(brief(&client).await).is_ok() {
            tokio::time::sleep(EXAMINED_EVERY).await;
        }
    });
    warnings
}

/// Returns a channel with the keys that the user types. A change of the terminal's size is `None`.
fn keys() -> mpsc::Receiver<Option<KeyCode>> {
    let (typed, keys) = mpsc::channel(16);
    // Read on a separate thread, outside the runtime, because a read can't be cancelled.
    std::thread::spawn(move || {
        while !typed.is_closed() {
            // The wait has a limit, because the receiver may have been dropped.
            let key = match event::poll(Duration::from_millis(200)) {
                Ok(true) => match event::read() {
                    Ok(Event::Key(key)) => Some(code(key)),
                    Ok(Event::Resize(..)) => Some(None),
                    Ok(_) => None,
                    Err(_) => return,
                },
                Ok(false) => None,
                Err(_) => return,
            };
            if key.is_some_and(|key| typed.blocking_send(key).is_err()) {
                return;
            }
        }
    });
    keys
}

fn code(key: KeyEvent) -> Option<KeyCode> {
    match key.kind {
        KeyEventKind::Release => None,
        // In raw mode, the terminal sends no signal for Ctrl-C.
        _ if key.modifiers.contains(KeyModifiers::CONTROL) => {
            (key.code == KeyCode::Char('c')).then_some(KeyCode::Char('q'))
        }
        _ => Some(key.code),
    }
}
