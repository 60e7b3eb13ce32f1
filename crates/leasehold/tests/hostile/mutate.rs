//! Ways to spoil a reply.

use fastrand::Rng;

/// Lengths and numbers that a reader may stumble over.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "-2",
    "4097",
    "65536",
    "1000000000",
    "2147483647",
    "-2147483648",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "99999999999999999999999",
    "",
    "+3",
    " 2",
    "0x10",
    "1e9",
    "?",
];

/// Errors and other complete replies, in place of a reply of another kind.
const REPLIES: &[&str] = &[
    "-NOSCRIPT No matching script\r\n",
    "-NOPERM no permissions\r\n",
    "-BUSY running a script\r\n",
    "-LOADING the dataset\r\n",
    "-OOM command not allowed\r\n",
    "-MOVED 1 127.0.0.1:1\r\n",
    "-ASK 1 127.0.0.1:1\r\n",
    "-READONLY\r\n",
    "-\r\n",
    "-\u{fffd} \u{202e}\r\n",
    "+OK\r\n",
    "+QUEUED\r\n",
    "_\r\n",
    "#t\r\n",
    ",inf\r\n",
    "(1\r\n",
    "=5\r\ntxt:x\r\n",
    "!5\r\nERR x\r\n",
    "%1\r\n+a\r\n:1\r\n",
    "~1\r\n:1\r\n",
    "|1\r\n+a\r\n:1\r\n:1\r\n",
    ">2\r\n+invalidate\r\n*0\r\n",
    ">3\r\n+subscribe\r\n+x\r\n:1\r\n",
    ">3\r\n+sunsubscribe\r\n+x\r\n:0\r\n",
    "*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\n0\r\n",
    "*0\r\n",
    "*-1\r\n",
    "$-1\r\n",
    ":0\r\n",
    ":1\r\n",
];

/// Makes one to three changes to `reply`. `earlier` is the reply that was sent before it.
pub(crate) fn mutate(mut reply: Vec<u8>, earlier: &[u8], rng: &mut Rng) -> Vec<u8> {
    for _ in 0..rng.u8(1..4) {
        reply = mutate_once(reply, earlier, rng);
    }
    reply
}

fn mutate_once(mut reply: Vec<u8>, earlier: &[u8], rng: &mut Rng) -> Vec<u8> {
    let place = rng.usize(..=reply.len());
    match rng.u8(..16) {
        0 => change(&mut reply, place, |byte| byte ^ (1 << (byte % 8))),
        1 => change(&mut reply, place, |byte| byte.wrapping_add(1)),
        2 => reply.insert(place, rng.u8(..)),
        3 => reply.truncate(place),
        4 => drop(reply.drain(place..(place + 3).min(reply.len()))),
        5 | 6 => replace_number(&mut reply, rng),
        7 => replace_element(&mut reply, rng),
        8 => reply.extend_from_slice(&reply.clone()),
        9 => drop(reply.splice(place..place, earlier.iter().copied())),
        10 => drop(reply.splice(..0, earlier.iter().copied())),
        11 => reply.extend_from_slice(pick(REPLIES, rng)),
        12 => drop(reply.splice(..0, pick(REPLIES, rng).iter().copied())),
        13 => reply = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect(),
        14 => drop(reply.splice(..0, b"*1\r\n".repeat(rng.usize(1..3000)))),
        _ => drop(reply.splice(place..place, vec![rng.u8(b' '..b'z'); rng.usize(..20_000)])),
    }
    reply
}

fn pick(texts: &[&'static str], rng: &mut Rng) -> &'static [u8] {
    texts[rng.usize(..texts.len())].as_bytes()
}

fn change(reply: &mut [u8], place: usize, how: impl Fn(u8) -> u8) {
    if let Some(byte) = reply.get_mut(place) {
        *byte = how(*byte);
    }
}

/// Replaces a number in a line, after the sign that announces it, with an unexpected number.
fn replace_number(reply: &mut Vec<u8>, rng: &mut Rng) {
    let lines = lines(reply);
    let (from, to) = lines[rng.usize(..lines.len())];
    if to > from {
        reply.splice(from + 1..to, pick(NUMBERS, rng).iter().copied());
    }
}

/// Replaces a line with another reply.
fn replace_element(reply: &mut Vec<u8>, rng: &mut Rng) {
    let lines = lines(reply);
    let (from, to) = lines[rng.usize(..lines.len())];
    let to = (to + 2).min(reply.len());
    reply.splice(from..to, pick(REPLIES, rng).iter().copied());
}

/// Returns the beginnings and ends of the lines, without their line ends.
fn lines(reply: &[u8]) -> Vec<(usize, usize)> {
    let mut lines = Vec::new();
    let mut from = 0;
    while let Some(length) = reply[from..].windows(2).position(|two| two == b"\r\n") {
        lines.push((from, from + length));
        from += length + 2;
    }
    lines.push((from, reply.len()));
    lines
}
