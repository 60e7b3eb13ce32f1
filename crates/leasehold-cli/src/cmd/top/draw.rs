//! The picture that `top` draws.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as Cells, Table, TableState, Wrap};

use super::state::{Mode, Row, State};
use crate::cmd::ls::{free, held_in_short, kind_word, left, waiting};
use crate::cmd::show::text;
use crate::duration;
use crate::output::Shown;

/// Width of the bar.
const BAR: usize = 8;

pub(super) fn draw(frame: &mut Frame<'_>, state: &State, colour: bool) {
    let [head, warned, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(state.warning.is_some().into()),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(title(state)), head);
    if let Some(warning) = &state.warning {
        let style = match colour {
            true => Style::new().fg(Color::Red),
            false => Style::new().add_modifier(Modifier::BOLD),
        };
        let line = cut(warning, warned.width);
        frame.render_widget(Paragraph::new(line).style(style), warned);
    }
    draw_table(frame, body, state, colour);
    frame.render_widget(Paragraph::new(Line::from(hint(state))), foot);
    if state.mode == Mode::Detail {
        draw_detail(frame, body, state);
    }
}

fn title(state: &State) -> String {
    let names = match state.rows().len() {
        1 => "1 name".to_owned(),
        rows => format!("{rows} names"),
    };
    let paused = if state.is_paused() { ", paused" } else { "" };
    let filter = match state.filter.is_empty() {
        true => String::new(),
        false => format!(" with `{}`", Shown(&state.filter)),
    };
    let order = state.order.word();
    format!(
        "leasehold  {}  {names}{filter}, by {order}{paused}{}",
        state.address, state.left_out
    )
}

fn hint(state: &State) -> String {
    match &state.mode {
        Mode::Filter => format!(
            "names with: {}_  (enter keeps it, esc removes it)",
            state.filter
        ),
        Mode::Sure { name, hold } => format!(
            "take {} from {}? The holder may continue to work. y/n",
            Shown(name),
            Shown(hold)
        ),
        Mode::Paused => "paused; any key continues".to_owned(),
        Mode::Detail => "enter or esc goes back, r releases".to_owned(),
        Mode::Table if state.message.is_empty() => {
            "arrows select  enter inspects  r releases  s sorts  / filters  p pauses  q ends"
                .to_owned()
        }
        Mode::Table => Shown(&state.message).to_string(),
    }
}

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Name,
    Kind,
    Held,
    For,
    Waiting,
    Changes,
    Ttl,
    Bar,
}

/// The columns, from left to right.
const COLUMNS: [Column; 8] = [
    Column::Name,
    Column::Kind,
    Column::Held,
    Column::For,
    Column::Waiting,
    Column::Changes,
    Column::Ttl,
    Column::Bar,
];
/// The columns that a narrow terminal does not show, beginning with the one that is dropped first.
const DROPPED: [Column; 7] = [
    Column::Bar,
    Column::Changes,
    Column::For,
    Column::Kind,
    Column::Waiting,
    Column::Ttl,
    Column::Held,
];
/// The minimum width of the column with the name.
const LEAST_NAME: u16 = 16;
/// The minimum width of the column with the holder.
const LEAST_HELD: u16 = 12;

impl Column {
    fn head(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Kind => "KIND",
            Self::Held => "HELD BY",
            Self::For => "FOR",
            Self::Waiting => "WAIT",
            Self::Changes => "CHG/S",
            Self::Ttl => "TTL",
            Self::Bar => "",
        }
    }

    /// Returns the minimum width of the column, including the space after the column.
    fn least(self) -> u16 {
        1 + match self {
            Self::Name => LEAST_NAME,
            Self::Held => LEAST_HELD,
            Self::Kind => 7,
            Self::For => 9,
            Self::Waiting => 5,
            Self::Changes | Self::Ttl => 6,
            Self::Bar => BAR as u16,
        }
    }
}

/// Returns the columns that fit, each with its width.
fn columns(width: u16) -> Vec<(Column, u16)> {
    // No space is needed after the last column.
    let width = width.saturating_add(1);
    let mut columns = COLUMNS.to_vec();
    let least = |columns: &[Column]| columns.iter().map(|column| column.least()).sum::<u16>();
    for dropped in DROPPED {
        if least(&columns) > width {
            columns.retain(|column| *column != dropped);
        }
    }
    let rest = width.saturating_sub(least(&columns));
    // A third of the remaining width is for the name, and two thirds are for the holder.
    let more = |column: Column| match column {
        Column::Name if !columns.contains(&Column::Held) => rest,
        Column::Name => rest / 3,
        Column::Held => rest - rest / 3,
        _ => 0,
    };
    let wide = |column: &Column| (*column, column.least() - 1 + more(*column));
    columns.iter().map(wide).collect()
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, state: &State, colour: bool) {
    let rows = state.rows();
    let columns = columns(area.width);
    let cells = rows.iter().map(|row| {
        let cells = columns.iter().map(|(column, _)| cell(*column, row, colour));
        Cells::new(cells)
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let head = Cells::new(columns.iter().map(|(column, _)| column.head()));
    let head = head.style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(cells, widths)
        .header(head)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::new().with_selected(state.place());
    frame.render_stateful_widget(table, area, &mut selected);
}

fn cell(column: Column, row: &Row, colour: bool) -> Cell<'static> {
    let info = &row.listed.info;
    Cell::new(match column {
        Column::Name => Shown(&row.listed.name).to_string(),
        Column::Kind => kind_word(info).to_owned(),
        Column::Held => format!("{}{}", held_in_short(info), free(info)),
        Column::For => row.held_for().map_or_else(String::new, |span| {
            duration::shown(std::time::Duration::from_secs(span.as_secs()))
        }),
        Column::Waiting => waiting(info),
        Column::Changes if row.changes > 0.0 => format!("{:.1}", row.changes),
        Column::Changes => String::new(),
        Column::Ttl => text::short_ttl(left(info)),
        Column::Bar => {
            let style = match row.part_left() {
                Some(part) if colour && part < 0.3 => Style::new().fg(Color::Red),
                Some(_) if colour => Style::new().fg(Color::Green),
                _ => Style::new(),
            };
            return Cell::new(bar(row.part_left())).style(style);
        }
    })
}

/// Cuts a text after the last word that fits.
fn cut(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let some: String = text.chars().take(width.saturating_sub(2)).collect();
    let whole = some.rsplit_once(' ').map_or(&*some, |(words, _)| words);
    format!("{whole} …")
}

/// Draws the remaining part of a lease as a bar, in characters that every terminal has.
fn bar(part: Option<f64>) -> String {
    let Some(part) = part else {
        return String::new();
    };
    let full = (0..BAR)
        .filter(|place| part * BAR as f64 > *place as f64)
        .count();
    format!("{}{}", "#".repeat(full), "-".repeat(BAR - full))
}

fn draw_detail(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(row) = state.selected() else {
        return;
    };
    let shown = text::of(&row.listed.name, &row.listed.info);
    let lines = shown.lines().count() as u16 + 2;
    let area = Rect {
        y: area.y + 2.min(area.height),
        height: lines.min(area.height.saturating_sub(2)),
        ..area
    };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(Shown(&row.listed.name).to_string());
    let detail = Paragraph::new(shown)
        .wrap(Wrap { trim: false })
        .block(block);
    frame.render_widget(detail, area);
}

#[cfg(test)]
mod tests {
    use leasehold::Client;
    use leasehold::inspect::Listed;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tokio::time::Instant;

    use super::super::Looked;
    use super::*;

    /// Returns the lines of the picture on a terminal of this width.
    fn drawn(state: &State, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 12)).expect("a terminal");
        terminal
            .draw(|frame| draw(frame, state, false))
            .expect("it draws");
        let buffer = terminal.backend().buffer();
        let line = |y| {
            let cells = (0..width).map(|x| buffer[(x, y)].symbol().to_owned());
            cells.collect::<String>().trim_end().to_owned()
        };
        (0..12).map(line).collect()
    }

    async fn listed(client: &Client) -> Vec<Listed> {
        let (mut names, mut found) = (client.list("*"), Vec::new());
        while let Some(listed) = names.next().await {
            found.push(listed.expect("it answers"));
        }
        found
    }

    #[tokio::test]
    async fn name_and_holder_are_seen_on_every_terminal_that_is_wide_enough() {
        let client = Client::embedded();
        let name = "orders:1234567890";
        let _guard = client.lock(name).acquire().await.expect("it is free");
        let mut state = State::new("memory://".into());
        state.seen(listed(&client).await, Instant::now());
        for width in 1..200 {
            let lines = drawn(&state, width);
            let (head, row) = (&lines[1], &lines[2]);
            let wanted: String = name
                .chars()
                .take(usize::from(width.min(LEAST_NAME)))
                .collect();
            assert!(row.starts_with(&wanted), "{width}: {row}");
            for (column, from) in [("HELD BY", 29), ("TTL", 36), ("KIND", 50), ("CHG/S", 67)] {
                assert_eq!(head.contains(column), width >= from, "{width}: {head}");
            }
            let total: u16 = columns(width).iter().map(|(_, width)| width + 1).sum();
            assert!(width < LEAST_NAME || total - 1 == width, "{width}: {total}");
        }
    }

    #[tokio::test]
    async fn sides_kinds_and_values_are_told() {
        let client = Client::embedded();
        let rw = client.rw_lock("rw");
        let _read = rw.read().await.expect("it is free");
        let group = client.group_lock("group", ["a", "b", "c"]);
        let _values = group.acquire().await.expect("they are free");
        let fair = client.fair_lock("fair");
        let _guard = fair.acquire().await.expect("it is free");
        let waits = tokio::spawn(async move { fair.acquire().await });
        let mut state = State::new("memory://".into());
        for look in 0.. {
            state.seen(listed(&client).await, Instant::now());
            let lines = drawn(&state, 120).join("\n");
            let short = client.id().split('-').next().expect("a part");
            let is_told = |row: &str| lines.contains(&format!("{row} Redisson? {short}:"));
            if is_told("to read:") && lines.contains("; 3 values") && lines.contains(" fair ") {
                break;
            }
            // After some queries, the waiter is in line.
            assert!(look < 1000, "{lines}");
            tokio::task::yield_now().await;
        }
        waits.abort();
    }

    #[tokio::test]
    async fn what_is_not_shown_is_told_in_the_first_line() {
        let mut state = State::new("memory://".into());
        let mut looked = Looked {
            others: 12,
            keys: Some((1500, 3194)),
            ..Looked::default()
        };
        looked.left_out.denied = 191;
        state.looked(looked, Instant::now());
        let first = &drawn(&state, 120)[0];
        let told = "; from 1500 of 3194 keys, give a pattern; 12 of other kinds; 191 keys denied";
        assert!(first.ends_with(told), "{first}");
    }

    #[test]
    fn warning_is_cut_between_words() {
        assert_eq!(cut("one two three", 13), "one two three");
        assert_eq!(cut("one two three", 12), "one two …");
        assert_eq!(cut("one", 1), " …");
    }
}
