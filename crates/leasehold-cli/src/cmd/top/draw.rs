//! The picture.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as Cells, Table, TableState, Wrap};

use super::state::{Mode, Row, State};
use crate::cmd::ls::{free, held, kind_word, left, waiting};
use crate::cmd::show::text;
use crate::duration;
use crate::output::Shown;

/// How many letters the bar has.
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
        frame.render_widget(Paragraph::new(warning.as_str()).style(style), warned);
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
        "leasehold  {}  {names}{filter}, by {order}{paused}",
        state.address
    )
}

fn hint(state: &State) -> String {
    match &state.mode {
        Mode::Filter => format!(
            "names with: {}_  (enter keeps it, esc removes it)",
            state.filter
        ),
        Mode::Sure { name, hold } => format!(
            "take {} from {}? It may still believe in it. y/n",
            Shown(name),
            Shown(hold)
        ),
        Mode::Paused => "paused; any key goes on".to_owned(),
        Mode::Detail => "enter or esc goes back, r releases".to_owned(),
        Mode::Table if state.message.is_empty() => {
            "arrows select  enter inspects  r releases  s sorts  / filters  p pauses  q ends"
                .to_owned()
        }
        Mode::Table => Shown(&state.message).to_string(),
    }
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, state: &State, colour: bool) {
    let rows = state.rows();
    let cells = rows.iter().map(|row| cells(row, colour));
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(7),
        Constraint::Fill(4),
        Constraint::Length(9),
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(8),
    ];
    let head = ["NAME", "KIND", "HELD BY", "FOR", "WAIT", "CHG/S", "TTL", ""];
    let head = Cells::new(head).style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(cells, widths)
        .header(head)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::new().with_selected(state.place());
    frame.render_stateful_widget(table, area, &mut selected);
}

fn cells(row: &Row, colour: bool) -> Cells<'static> {
    let info = &row.listed.info;
    let held_for = row.held_for().map_or_else(String::new, |span| {
        duration::shown(std::time::Duration::from_secs(span.as_secs()))
    });
    let changes = match row.changes > 0.0 {
        true => format!("{:.1}", row.changes),
        false => String::new(),
    };
    let bar = Cell::new(bar(row.part_left())).style(match row.part_left() {
        Some(part) if colour && part < 0.3 => Style::new().fg(Color::Red),
        Some(_) if colour => Style::new().fg(Color::Green),
        _ => Style::new(),
    });
    Cells::new(vec![
        Cell::new(Shown(&row.listed.name).to_string()),
        Cell::new(kind_word(info)),
        Cell::new(format!("{}{}", held(info), free(info))),
        Cell::new(held_for),
        Cell::new(waiting(info)),
        Cell::new(changes),
        Cell::new(text::short_ttl(left(info))),
        bar,
    ])
}

/// What is left, in letters that every terminal has.
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
