//! The checker: a sweep over the events of a history, for locks and for permits.
//!
//! A name has a number of places, and each occupancy takes some of them. The places of a semaphore
//! are its permits. A lock has as many places as its history has holds: a reader takes one place,
//! and a writer takes all.

/// A point in a history: a time, and its order among the events at that time.
pub(super) type Point = (u64, u64);

/// The use of places, from the return of an acquire to the call to `release` or to the holder's
/// deadline.
pub(super) struct Occupancy<H> {
    /// The holder of the places. Occupancies of the same holder do not exclude each other.
    pub(super) holder: H,
    pub(super) places: u64,
    pub(super) asked: Point,
    pub(super) from: Point,
    pub(super) until: Point,
}

/// The findings of the sweep.
#[derive(Debug, Default)]
pub(super) struct SweepResult {
    /// The largest number of places that were taken at once.
    pub(super) most: u64,
    /// Number of occupancies for which too few places were free at some moment between their
    /// request and their start.
    pub(super) waited: usize,
    /// For each occupancy that began although too few places were free: the index of an occupancy
    /// that blocked it, and its own index.
    pub(super) overlapping: Vec<(usize, usize)>,
}

/// The events at one point, in the order in which they are processed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SweepEvent {
    // `End` is first, so that a hand-over at one point is not an overlap. `Request` is before
    // `Begin`, because an occupancy may begin at the point of its own request.
    End,
    Request,
    Begin,
}

/// Checks the occupancies of one name that has `capacity` places.
pub(super) fn sweep<H: PartialEq>(occupancies: &[Occupancy<H>], capacity: u64) -> SweepResult {
    let mut events = Vec::with_capacity(3 * occupancies.len());
    for (number, occupancy) in occupancies.iter().enumerate() {
        // An occupancy that ended before it began has taken nothing.
        if occupancy.from < occupancy.until {
            // A request that was recorded after the occupancy's own start would never be removed
            // from `unhindered`, and could count as a wait when another holder begins.
            events.push((
                occupancy.asked.min(occupancy.from),
                SweepEvent::Request,
                number,
            ));
            events.push((occupancy.from, SweepEvent::Begin, number));
            events.push((occupancy.until, SweepEvent::End, number));
        }
    }
    events.sort_unstable();
    let mut now = Now {
        occupancies,
        capacity,
        inside: Vec::new(),
    };
    let mut result = SweepResult::default();
    // The waiters for whom enough places have been free since their request.
    let mut unhindered = Vec::new();
    for (_, event, number) in events {
        match event {
            SweepEvent::End => now.inside.retain(|inside| *inside != number),
            SweepEvent::Request if now.has_capacity(number) => unhindered.push(number),
            SweepEvent::Request => result.waited += 1,
            SweepEvent::Begin => {
                if !now.has_capacity(number) {
                    // If an occupancy wants more places than the name has, there may be no
                    // occupancy that blocks it. `most` shows that case.
                    let first = now.blocker(number);
                    result
                        .overlapping
                        .extend(first.map(|first| (first, number)));
                }
                // The occupancy counts as inside even if too few places were free: the next one may
                // overlap with it, too.
                now.inside.push(number);
                result.most = result.most.max(now.taken());
                let before = unhindered.len();
                // This also removes `number`, and counts it as a wait, if it began although too few
                // places were free.
                unhindered.retain(|waiter| now.has_capacity(*waiter));
                result.waited += before - unhindered.len();
                unhindered.retain(|waiter| *waiter != number);
            }
        }
    }
    result
}

/// A moment of a history.
struct Now<'a, H> {
    occupancies: &'a [Occupancy<H>],
    capacity: u64,
    /// The occupancies that have begun and have not ended.
    inside: Vec<usize>,
}

impl<H: PartialEq> Now<'_, H> {
    fn taken(&self) -> u64 {
        self.inside
            .iter()
            .map(|inside| self.occupancies[*inside].places)
            .sum()
    }

    /// Returns the current occupancies of other holders.
    fn others(&self, number: usize) -> impl Iterator<Item = usize> {
        let holder = &self.occupancies[number].holder;
        let inside = self.inside.iter().copied();
        inside.filter(move |inside| self.occupancies[*inside].holder != *holder)
    }

    fn has_capacity(&self, number: usize) -> bool {
        let others = self.others(number);
        let taken: u64 = others.map(|other| self.occupancies[other].places).sum();
        taken + self.occupancies[number].places <= self.capacity
    }

    /// Returns the largest current occupancy of another holder. If several have the same number of
    /// places, returns the one that ends last.
    fn blocker(&self, number: usize) -> Option<usize> {
        let size = |other: &usize| {
            (
                self.occupancies[*other].places,
                self.occupancies[*other].until,
            )
        };
        self.others(number).max_by_key(size)
    }
}
