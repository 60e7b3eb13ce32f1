//! The history of a demo, made from the events: the waits, holds and sales of each worker.

use super::event::Event;

/// The history of all workers.
pub(super) struct Story {
    rows: Vec<Row>,
}

/// The history of one worker. Times are nanoseconds on the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) label: String,
    /// Holds that have ended.
    pub(super) holds: Vec<Span>,
    /// The last wait, if it ended without a hold.
    pub(super) last_wait: Option<(u64, u64)>,
    /// Number of sales that the worker has reported.
    pub(super) sold: u64,
    /// Number of times that the worker found that its lock was lost.
    pub(super) lost: u64,
    pub(super) killed_at: Option<u64>,
    now: Now,
}

/// A hold, and the wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) asked: u64,
    pub(super) from: u64,
    pub(super) until: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum Now {
    #[default]
    Outside,
    Waiting {
        asked: u64,
    },
    Inside {
        asked: u64,
        from: u64,
        valid_until: u64,
    },
}

impl Story {
    pub(super) fn new(labels: Vec<String>) -> Self {
        let row = |label| Row {
            label,
            ..Row::default()
        };
        Self {
            rows: labels.into_iter().map(row).collect(),
        }
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Records an event of a worker.
    pub(super) fn said(&mut self, worker: usize, event: &Event) {
        let row = &mut self.rows[worker];
        match *event {
            Event::Asked { at } => row.now = Now::Waiting { asked: at },
            Event::Acquired { at, valid_until } => {
                let asked = match row.now {
                    Now::Waiting { asked } => asked,
                    _ => at,
                };
                row.now = Now::Inside {
                    asked,
                    from: at,
                    valid_until,
                };
            }
            Event::Renewed { valid_until: later } => {
                if let Now::Inside { valid_until, .. } = &mut row.now {
                    *valid_until = (*valid_until).max(later);
                }
            }
            Event::Sold { serial } => row.sold = serial,
            Event::Lost { at } => {
                row.lost += 1;
                row.leave(at);
            }
            Event::Releasing {
                at,
                valid_until: last,
            } => {
                if let Now::Inside { valid_until, .. } = &mut row.now {
                    *valid_until = last;
                }
                row.leave(at);
            }
            Event::Ready | Event::Lingering { .. } | Event::Failed { .. } => {}
        }
    }

    /// Records the end of a worker, noticed at `at`. The worker's current hold ends at that time,
    /// or at the deadline of the hold if that is earlier: until then, the worker may have acted as
    /// the holder.
    pub(super) fn ended(&mut self, worker: usize, killed: bool, at: u64) {
        let row = &mut self.rows[worker];
        if let Now::Waiting { asked } = row.now {
            row.last_wait = Some((asked, at));
        }
        row.leave(at);
        row.killed_at = killed.then_some(at);
    }

    /// Returns the times at which the demo began and ended.
    pub(super) fn bounds(&self) -> (u64, u64) {
        let rows = self.rows.iter();
        let times = rows.flat_map(|row| {
            let holds = row.holds.iter().flat_map(|hold| [hold.asked, hold.until]);
            let wait = row.last_wait.iter().flat_map(|wait| [wait.0, wait.1]);
            holds.chain(wait).chain(row.killed_at)
        });
        let (start, end) = times.fold((u64::MAX, 0), |(start, end), time| {
            (start.min(time), end.max(time))
        });
        (start.min(end), end)
    }
}

impl Row {
    fn leave(&mut self, at: u64) {
        if let Now::Inside {
            asked,
            from,
            valid_until,
        } = self.now
        {
            self.holds.push(Span {
                asked,
                from,
                until: at.min(valid_until),
            });
        }
        self.now = Now::Outside;
    }

    pub(super) fn holds_at(&self, time: u64) -> bool {
        self.holds
            .iter()
            .any(|hold| (hold.from..hold.until).contains(&time))
    }

    pub(super) fn waits_at(&self, time: u64) -> bool {
        let waits = self.holds.iter().map(|hold| (hold.asked, hold.from));
        waits
            .chain(self.last_wait)
            .any(|(asked, end)| (asked..end).contains(&time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(events: &[Event]) -> Story {
        let mut story = Story::new(vec!["a".into()]);
        for event in events {
            story.said(0, event);
        }
        story
    }

    #[test]
    fn hold_of_killed_holder_ends_by_deadline() {
        let events = [
            Event::Asked { at: 10 },
            Event::Acquired {
                at: 20,
                valid_until: 100,
            },
        ];
        let mut early = story(&events);
        early.ended(0, true, 50);
        assert_eq!(early.rows()[0].holds[0].until, 50);
        let mut late = story(&events);
        late.ended(0, true, 500);
        assert_eq!(late.rows()[0].holds[0].until, 100);
        assert_eq!(late.rows()[0].killed_at, Some(500));
    }

    #[test]
    fn renewal_moves_the_end_of_an_open_hold() {
        let mut story = story(&[
            Event::Asked { at: 10 },
            Event::Acquired {
                at: 20,
                valid_until: 100,
            },
            Event::Renewed { valid_until: 200 },
        ]);
        story.ended(0, true, 500);
        assert_eq!(story.rows()[0].holds[0].until, 200);
    }

    #[test]
    fn waiting_and_holding_are_told_apart() {
        let story = story(&[
            Event::Asked { at: 10 },
            Event::Acquired {
                at: 20,
                valid_until: 100,
            },
            Event::Sold { serial: 1 },
            Event::Releasing {
                at: 30,
                valid_until: 100,
            },
        ]);
        let row = &story.rows()[0];
        assert!(row.waits_at(10) && !row.holds_at(10));
        assert!(row.holds_at(20) && !row.waits_at(20));
        assert!(!row.holds_at(30));
        assert_eq!(story.bounds(), (10, 30));
    }
}
