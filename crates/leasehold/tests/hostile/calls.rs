//! The client's calls, read as the server would read them, and good replies to them.

use fastrand::Rng;
use leasehold_testkit::fake::{Request, bulk, list};

/// A script call: operations that run in their order.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) operations: Vec<Operation>,
    /// Whether the call runs the script of a single step, which replies with a text.
    pub(crate) own: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) step: String,
    /// The wire id of the hold that the step is about; empty if there is none.
    pub(crate) hold: String,
}

/// Returns the number of arguments that follow the name of a step. `first` reads the first of them.
fn arguments(step: &str, first: impl Fn() -> String) -> usize {
    match step {
        "lock.acquire" | "lock.release" | "lock.release_and_notify" | "lock.force_unlock" => 2,
        "lock.acquire_and_enlist" => 4,
        "lock.renew" => 3,
        // The number of holds, the lease, and the holds.
        "lock.renew_many" => 2 + first().parse::<usize>().unwrap(),
        "lock.why_lost" | "lock.delist" => 1,
        "lock.inspect" => 0,
        "latch.count_down" | "presence.enrol" => 2,
        "presence.announce" => 9,
        other => panic!("a step this test does not know: {other}"),
    }
}

/// Parses the request, if it is a call.
pub(crate) fn read(request: &Request) -> Option<Call> {
    if !matches!(&*request.command(), "EVALSHA" | "EVAL") {
        return None;
    }
    let keys: usize = request.text(2).parse().unwrap();
    let mut at = 3 + keys;
    let number = request.text(at).parse().unwrap();
    if let Some(operation) = read_own(request, at + 1) {
        let operations = vec![operation];
        return Some(Call {
            number,
            operations,
            own: true,
        });
    }
    at += 2;
    let mut operations = Vec::new();
    while at < request.parts.len() {
        let step = request.text(at);
        let arguments = arguments(&step, || request.text(at + 1));
        let hold = match &*step {
            "lock.acquire" | "lock.renew" | "lock.release" => request.text(at + 1),
            "lock.acquire_and_enlist" | "lock.release_and_notify" => request.text(at + 1),
            _ => String::new(),
        };
        operations.push(Operation { step, hold });
        at += 1 + arguments;
    }
    Some(Call {
        number,
        operations,
        own: false,
    })
}

/// Parses the operation of a script that runs a single step, where the step's name is last.
fn read_own(request: &Request, at: usize) -> Option<Operation> {
    // At this position, other calls have their latest time or the name of their first step.
    let is_hold = |at| request.text(at).contains(':');
    let (step, hold) = match () {
        () if is_hold(at) => ("lock.release", at),
        () if is_hold(at + 1) => ("lock.acquire", at + 1),
        () => return None,
    };
    Some(Operation {
        step: step.to_owned(),
        hold: request.text(hold),
    })
}

/// Builds the reply to a call from the replies of its operations.
fn answer(call: &Call, replies: &[Vec<u8>]) -> Vec<u8> {
    let number = call.number;
    let text = |reply: &[u8]| {
        let reply = str::from_utf8(reply).ok()?.strip_suffix("\r\n")?;
        match reply {
            "$-1" => Some(number.to_string()),
            _ => Some(format!(
                "{number}{}",
                reply.strip_prefix(':').map(|n| format!(":{n}"))?
            )),
        }
    };
    match replies {
        [reply] if call.own && text(reply).is_some() => {
            bulk(text(reply).unwrap_or_default().as_bytes())
        }
        _ => {
            let mut all = vec![int(number)];
            all.extend_from_slice(replies);
            list(&all)
        }
    }
}

/// Builds a reply that a server might send: each hold is granted or not, at random.
pub(crate) fn reply(call: &Call, rng: &mut Rng) -> Vec<u8> {
    let mut replies = Vec::new();
    for operation in &call.operations {
        replies.push(match &*operation.step {
            "lock.acquire" => match rng.u8(..10) {
                0..6 => b"$-1\r\n".to_vec(),
                6 => list(&[bulk(b"late"), int(rng.i64(..))]),
                7 => bulk(b"WRONGKIND a read-write lock"),
                _ => int(rng.i64(-1..100)),
            },
            "lock.acquire_and_enlist" => match rng.u8(..10) {
                0..6 => b"$-1\r\n".to_vec(),
                6 => list(&[bulk(b"late"), int(rng.i64(..))]),
                7 => list(&[int(rng.i64(-1..100)), int(rng.i64(..))]),
                _ => list(&[int(rng.i64(-1..100)), int(rng.i64(-1..9))]),
            },
            "lock.release" | "lock.release_and_notify" | "lock.renew" => {
                int(i64::from(rng.u8(..8) > 0))
            }
            // Some holds must be renewed alone, and others do not exist.
            "lock.renew_many" => match rng.u8(..4) {
                0 => list(&[int(rng.i64(-1..40)), int(rng.i64(..))]),
                1 => int(1),
                _ => list(&[]),
            },
            "lock.why_lost" => list(&[bulk(b"7e57c0de-0000-4000-8000-000000000000:1"), int(0)]),
            "lock.inspect" => list(&[
                int(1000),
                bulk(b"7e57c0de-0000-4000-8000-000000000000:1"),
                bulk(b"1"),
            ]),
            _ => int(1),
        });
    }
    answer(call, &replies)
}

pub(crate) fn int(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

/// Builds the reply that grants what the call asks for, and nothing else.
pub(crate) fn grant(call: &Call) -> Vec<u8> {
    let mut replies = Vec::new();
    for operation in &call.operations {
        replies.push(match &*operation.step {
            "lock.acquire" | "lock.acquire_and_enlist" => b"$-1\r\n".to_vec(),
            "lock.renew_many" => list(&[]),
            _ => int(1),
        });
    }
    answer(call, &replies)
}
