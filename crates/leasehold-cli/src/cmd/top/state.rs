//! The state of the picture, and the effect of each key.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use leasehold::inspect::{Listed, Ttl};
use ratatui::crossterm::event::KeyCode;
use tokio::time::Instant;

use super::Looked;
use crate::cmd::ls::{first_holder, in_line, left};
use crate::failure::Failure;

/// The time span for which changes of hands are counted.
const WINDOW: Duration = Duration::from_secs(10);

/// The action that a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Draw the picture, and nothing else.
    Drawn,
    Quit,
    Release {
        name: String,
        hold: String,
    },
}

/// The order of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Name,
    Held,
    Waiting,
    Changes,
    Ttl,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Name => Self::Held,
            Self::Held => Self::Waiting,
            Self::Waiting => Self::Changes,
            Self::Changes => Self::Ttl,
            Self::Ttl => Self::Name,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Held => "held for",
            Self::Waiting => "waiting",
            Self::Changes => "changes",
            Self::Ttl => "TTL",
        }
    }
}

/// A name in the table.
pub(super) struct Row {
    pub(super) listed: Listed,
    /// Number of changes of hands per second that the queries have noticed.
    pub(super) changes: f64,
    /// The longest TTL seen of the current hold: the full length of the bar.
    pub(super) full: Duration,
}

/// The facts about a name that are kept between queries.
struct Past {
    holder: Option<String>,
    changed_at: VecDeque<Instant>,
    full: Duration,
}

pub(super) struct State {
    pub(super) address: String,
    rows: Vec<Row>,
    past: HashMap<String, Past>,
    begun: Option<Instant>,
    /// The selected name. It stays selected when its row moves.
    selected: Option<String>,
    pub(super) order: Order,
    /// The text that shown names must contain.
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) message: String,
    /// The doctor's warning.
    pub(super) warning: Option<String>,
    /// The names that the last query left out, in words.
    pub(super) left_out: String,
    /// Whether the message is about a failed query.
    is_failing: bool,
}

/// The mode, which decides the meaning of the next key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    /// Keys edit the filter.
    Filter,
    /// All details of the selected name are shown.
    Detail,
    /// The user has been asked whether to end this hold.
    Sure {
        name: String,
        hold: String,
    },
    Paused,
}

impl State {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            rows: Vec::new(),
            past: HashMap::new(),
            begun: None,
            selected: None,
            order: Order::Name,
            filter: String::new(),
            mode: Mode::Table,
            message: String::new(),
            warning: None,
            left_out: String::new(),
            is_failing: false,
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.mode == Mode::Paused
    }

    /// Adopts the result of a query: the names, and how many names the query left out.
    pub(super) fn looked(&mut self, looked: Looked, now: Instant) {
        let mut words = String::new();
        // Writing to a string can't fail.
        if let Some((keys, total)) = looked.keys {
            // This is the number of keys, because the other keys need not be names.
            let _ = write!(
                words,
                "; from {} of {total} keys, give a pattern",
                keys.min(total)
            );
        }
        for (count, what) in [
            (looked.others, "of other kinds"),
            (looked.left_out.denied, "keys denied"),
            (looked.left_out.too_long, "too long"),
            (looked.left_out.not_utf8, "not UTF-8"),
        ] {
            if count > 0 {
                let _ = write!(words, "; {count} {what}");
            }
        }
        self.left_out = words;
        self.seen(looked.found, now);
    }

    /// Adopts the names that a query has found.
    pub(super) fn seen(&mut self, found: Vec<Listed>, now: Instant) {
        let begun = *self.begun.get_or_insert(now);
        let span = now.duration_since(begun).min(WINDOW).as_secs_f64().max(1.0);
        let mut past = std::mem::take(&mut self.past);
        self.rows = found
            .into_iter()
            .map(|listed| {
                let before = past.remove(&listed.name);
                let (row, after) = row(listed, before, now, span);
                self.past.insert(row.listed.name.clone(), after);
                row
            })
            .collect();
        if std::mem::take(&mut self.is_failing) {
            self.message.clear();
        }
        self.sort();
    }

    pub(super) fn failed(&mut self, error: &leasehold::Error) {
        self.message = Failure::from(error.clone()).to_string();
        self.is_failing = true;
    }

    pub(super) fn released(&mut self, name: &str, hold: &str, result: leasehold::Result<bool>) {
        self.message = match result {
            Ok(true) => format!("took {name} from {hold}"),
            Ok(false) => format!("{name} has changed hands; nothing was released"),
            Err(error) => Failure::from(error).to_string(),
        };
    }

    /// Returns the rows to show.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let all = self.rows.iter();
        all.filter(|row| row.listed.name.contains(&self.filter))
            .collect()
    }

    /// Returns the position of the selected row.
    pub(super) fn place(&self) -> Option<usize> {
        let rows = self.rows();
        let selected = self.selected.as_ref()?;
        rows.iter().position(|row| row.listed.name == *selected)
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        let rows = self.rows();
        rows.get(self.place()?).copied()
    }

    /// Handles a key. `None` means that the size of the terminal has changed.
    pub(super) fn pressed(&mut self, key: Option<KeyCode>) -> Option<Answer> {
        let Some(key) = key else {
            return Some(Answer::Drawn);
        };
        match std::mem::replace(&mut self.mode, Mode::Table) {
            Mode::Filter => self.filtered_by(key),
            Mode::Sure { name, hold } => {
                if key == KeyCode::Char('y') {
                    return Some(Answer::Release { name, hold });
                }
                "nothing was released".clone_into(&mut self.message);
            }
            Mode::Paused => {}
            Mode::Detail if matches!(key, KeyCode::Esc | KeyCode::Enter) => {}
            before => {
                self.message.clear();
                if key == KeyCode::Char('q') {
                    return Some(Answer::Quit);
                }
                self.mode = before;
                self.in_table(key);
            }
        }
        Some(Answer::Drawn)
    }

    fn filtered_by(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => return,
            KeyCode::Esc => {
                self.filter.clear();
                return;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.mode = Mode::Filter;
    }

    fn in_table(&mut self, key: KeyCode) {
        match key {
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.sort();
            }
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('p') => self.mode = Mode::Paused,
            KeyCode::Enter => self.show_whole(),
            KeyCode::Char('r') => self.ask_to_release(),
            _ => {}
        }
    }

    /// Shows the details of the selected name, or of the first one.
    fn show_whole(&mut self) {
        if self.selected().is_none() {
            self.select(0);
        }
        if self.selected().is_some() {
            self.mode = Mode::Detail;
        }
    }

    fn ask_to_release(&mut self) {
        let holder = self.selected().map(|row| {
            let holder = first_holder(&row.listed.info);
            (row.listed.name.clone(), holder.map(str::to_owned))
        });
        match holder {
            Some((name, Some(hold))) => self.mode = Mode::Sure { name, hold },
            Some((name, None)) => self.message = format!("no client holds {name}"),
            None => "select a name first, with the arrows".clone_into(&mut self.message),
        }
    }

    fn select(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let place = match self.place() {
            Some(place) => place.saturating_add_signed(by).min(last),
            None => 0,
        };
        self.selected = rows.get(place).map(|row| row.listed.name.clone());
    }

    fn sort(&mut self) {
        let order = self.order;
        // Sort by name first, so that rows with the same number keep their places.
        self.rows.sort_by(|a, b| a.listed.name.cmp(&b.listed.name));
        self.rows.sort_by(|a, b| match order {
            Order::Name => std::cmp::Ordering::Equal,
            Order::Held => b.held_for().cmp(&a.held_for()),
            Order::Waiting => in_line(&b.listed.info).cmp(&in_line(&a.listed.info)),
            Order::Changes => b.changes.total_cmp(&a.changes),
            Order::Ttl => a.left().cmp(&b.left()),
        });
    }
}

fn row(listed: Listed, before: Option<Past>, now: Instant, span: f64) -> (Row, Past) {
    let holder = first_holder(&listed.info).map(str::to_owned);
    let mut past = before.unwrap_or_else(|| Past {
        holder: holder.clone(),
        changed_at: VecDeque::new(),
        full: Duration::ZERO,
    });
    if past.holder != holder {
        past.holder = holder;
        past.full = Duration::ZERO;
        past.changed_at.push_back(now);
    }
    while past
        .changed_at
        .front()
        .is_some_and(|at| now.duration_since(*at) > WINDOW)
    {
        past.changed_at.pop_front();
    }
    if let Ttl::Left(span) = left(&listed.info) {
        past.full = past.full.max(span);
    }
    // This is at most 10 000: one change for each query within the window.
    let changes = f64::from(u32::try_from(past.changed_at.len()).unwrap_or(u32::MAX)) / span;
    let full = past.full;
    (
        Row {
            listed,
            changes,
            full,
        },
        past,
    )
}

impl Row {
    pub(super) fn held_for(&self) -> Option<Duration> {
        crate::cmd::ls::held_for(&self.listed.info)
    }

    /// Returns the remaining TTL, for sorting. Names without an expiry are last.
    fn left(&self) -> Duration {
        match left(&self.listed.info) {
            Ttl::Left(span) => span,
            _ => Duration::MAX,
        }
    }

    /// Returns the remaining TTL as a fraction of the longest TTL seen.
    pub(super) fn part_left(&self) -> Option<f64> {
        match left(&self.listed.info) {
            Ttl::Left(span) if !self.full.is_zero() => {
                Some(span.as_secs_f64() / self.full.as_secs_f64())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold::Client;

    use super::*;

    async fn look(client: &Client) -> Vec<Listed> {
        let (mut names, mut found) = (client.list("*"), Vec::new());
        while let Some(listed) = names.next().await {
            found.push(listed.expect("it answers"));
        }
        found
    }

    fn press(state: &mut State, keys: &str) -> Option<Answer> {
        let mut last = None;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                key => KeyCode::Char(key),
            };
            last = state.pressed(Some(code));
        }
        last
    }

    fn names(state: &State) -> Vec<&str> {
        let rows = state.rows().into_iter();
        rows.map(|row| row.listed.name.as_str()).collect()
    }

    #[tokio::test]
    async fn names_are_filtered_sorted_and_selected() {
        let client = Client::embedded();
        let short = client.lock("b").fixed_lease(Duration::from_secs(5));
        let guards = (
            client.lock("a").acquire().await.expect("free"),
            short.acquire().await.expect("free"),
        );
        let mut state = State::new("memory://".into());
        state.seen(look(&client).await, Instant::now());
        assert_eq!(names(&state), ["a", "b"]);
        // The rows are now sorted by the remaining TTL, four columns further.
        press(&mut state, "ssss");
        assert_eq!((state.order, names(&state)), (Order::Ttl, vec!["b", "a"]));
        press(&mut state, "jj");
        assert_eq!(state.place(), Some(1));
        press(&mut state, "/a\n");
        assert_eq!((names(&state), state.place()), (vec!["a"], Some(0)));
        let Some(Answer::Release { name, hold }) = press(&mut state, "ry") else {
            panic!("it is sure");
        };
        assert_eq!((&*name, &*hold), ("a", guards.0.holder_id()));
        assert_eq!(press(&mut state, "rn"), Some(Answer::Drawn));
        press(&mut state, "/\u{1b}p");
        assert!(state.is_paused());
        assert_eq!(press(&mut state, "xq"), Some(Answer::Quit));
    }

    #[tokio::test]
    async fn enter_shows_the_first_name_when_none_is_selected() {
        let client = Client::embedded();
        let mut state = State::new("memory://".into());
        press(&mut state, "\n");
        assert_eq!(state.mode, Mode::Table, "there is nothing to show");
        let _guard = client.lock("a").acquire().await.expect("free");
        state.seen(look(&client).await, Instant::now());
        press(&mut state, "\n");
        assert_eq!((state.place(), state.mode), (Some(0), Mode::Detail));
    }

    #[tokio::test]
    async fn permits_show_what_is_left_of_the_lease_that_ends_first() {
        let client = Client::embedded();
        let semaphore = client.expirable_semaphore("a");
        semaphore.set_permits(2).await.expect("set");
        let short = semaphore.clone().fixed_lease(Duration::from_secs(100));
        let long = semaphore.clone().fixed_lease(Duration::from_secs(900));
        let _permits = (
            long.acquire().await.expect("free"),
            short.acquire().await.expect("free"),
        );
        let mut state = State::new("memory://".into());
        state.seen(look(&client).await, Instant::now());
        let row = state.rows()[0];
        assert!(row.left() <= Duration::from_secs(100), "{:?}", row.left());
        assert_eq!(row.part_left(), Some(1.0));
    }

    #[tokio::test]
    async fn changes_of_hands_are_counted_for_a_while() {
        let client = Client::embedded();
        let (mut state, begun) = (State::new("memory://".into()), Instant::now());
        for second in 0..5 {
            let guard = client.lock("a").acquire().await.expect("free");
            state.seen(look(&client).await, begun + Duration::from_secs(second));
            guard.release().await.expect("released");
        }
        let _guard = client.lock("a").acquire().await.expect("free");
        state.seen(look(&client).await, begun + Duration::from_secs(5));
        let changes = |state: &State| state.rows()[0].changes;
        assert!((changes(&state) - 1.0).abs() < 0.01, "{}", changes(&state));
        state.seen(look(&client).await, begun + Duration::from_secs(60));
        assert!(changes(&state) < 0.01, "{}", changes(&state));
    }
}
