//! Recordings of calls of live Redissons, with the keys that were in Redis after each call.

/// One step of a recording.
pub(crate) struct Step<State> {
    pub(crate) number: String,
    /// The text of a call, like `client1.t1 lock:L.tryLock(150, MILLISECONDS)`.
    pub(crate) call: String,
    pub(crate) answer: String,
    pub(crate) waiter_returned: bool,
    /// The keys after the call; `None` if they were not recorded.
    pub(crate) state: Option<State>,
}

/// Reads the steps of a recording. A line that contains `returned` says that the waiter has
/// returned. `read_state` adds the key that a line describes.
pub(crate) fn steps<State: Default>(
    text: &str,
    returned: &str,
    read_state: fn(&str, &mut State),
) -> Vec<Step<State>> {
    let mut steps: Vec<Step<State>> = Vec::new();
    for line in text.lines() {
        let numbered = line
            .split_once(". ")
            .filter(|(number, _)| number.parse::<u32>().is_ok());
        if let Some((number, rest)) = numbered {
            let (call, answer) = rest.split_once(" -> ").unwrap_or((rest, ""));
            steps.push(Step {
                number: number.into(),
                call: call.into(),
                answer: answer.split("   #").next().unwrap_or("").trim().into(),
                waiter_returned: false,
                state: None,
            });
        } else if let Some(step) = steps.last_mut() {
            if let Some(state) = line.trim().strip_prefix("= ") {
                let known = step.state.get_or_insert_default();
                if state != "(no keys)" {
                    read_state(state, known);
                }
            }
            step.waiter_returned |= line.contains(returned);
        }
    }
    steps
}
