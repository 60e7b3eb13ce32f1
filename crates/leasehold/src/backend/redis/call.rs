//! The codec of a call. It turns operations into the command that runs them, and a reply into the
//! result of each operation. It sends nothing and remembers nothing.

use std::sync::Arc;
use std::time::Duration;
use std::vec;

use redis::{Cmd, RedisError, ServerErrorKind};

use super::reply_text;
use super::script::{GUARD_KEY, Script, Text, commands};
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::backend::step::{Operation, Value};
use crate::key::Key;
use crate::text::Shown;

/// The parts of a call apart from its operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) script: ScriptRef,
    pub(crate) number: i64,
    /// The deadline in server time, after which no client waits for the reply; 0 if the call runs
    /// however late it arrives.
    pub(crate) not_after_ms: i64,
    pub(crate) keys: Keys,
}

/// The way in which a call names its keys to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Declared keys, for a single server.
    Declared,
    /// Undeclared keys, for a node of a cluster: they may be in any slots that the node has. Each
    /// operation checks whether its slot is there.
    Undeclared,
    /// The declared keys of one operation, for a node of a cluster. If the operation also touches
    /// undeclared keys, it checks whether its slot is there.
    DeclaredAlone { checks_slot: bool },
}

impl Keys {
    pub(crate) fn declared_alone(operation: &Operation) -> Self {
        // A node that is receiving the slot does not have all of its keys yet. It reports a missing
        // key only if the key is declared.
        Self::DeclaredAlone {
            checks_slot: !operation.step.while_moving,
        }
    }
}

/// The way in which a call names the script to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptRef {
    Sha,
    Source,
}

/// Draws the number by which a call's reply is recognised. It can't be derived from the numbers of
/// other calls: otherwise a corrupt reply could name the next call. It is below 2^53, where a
/// script's numbers are exact.
pub(crate) fn draw_number() -> i64 {
    fastrand::i64(1_000_000_000_000_000..1 << 53)
}

/// An upper limit for the total length of the key count, the call's number and its deadline.
const NUMBERS_LEN: usize = 60;

/// Returns the command that runs these operations.
pub(crate) fn encode<'a>(
    script: &Script,
    header: Header,
    operations: impl Iterator<Item = &'a Operation> + Clone,
) -> Cmd {
    let (name, source) = match header.script {
        ScriptRef::Sha => ("EVALSHA", &script.any.sha),
        ScriptRef::Source => ("EVAL", &script.any.text),
    };
    // The command gets its full size at once, because a command that grows is copied several times.
    let (mut arguments, mut bytes, mut keys) = (6, name.len() + source.len() + NUMBERS_LEN, 0);
    for operation in operations.clone() {
        arguments += 2 + operation.parts.len();
        bytes += operation.step.name.len() + operation.parts.size();
        keys += operation.key_count();
    }
    let mut command = Cmd::with_capacity(arguments, bytes);
    command.arg(name).arg(source);
    let add_keys = |command: &mut Cmd| {
        for operation in operations.clone() {
            for key in operation.keys() {
                command.arg(key);
            }
        }
    };
    let (number, not_after_ms) = (header.number, header.not_after_ms);
    if header.keys == Keys::Undeclared {
        command.arg(0).arg(number).arg(not_after_ms).arg(keys);
        add_keys(&mut command);
    } else {
        command.arg(keys);
        add_keys(&mut command);
        command.arg(number).arg(not_after_ms);
    }
    if let Keys::DeclaredAlone { checks_slot } = header.keys {
        command.arg(if checks_slot { "here" } else { "0" });
    }
    for operation in operations {
        command.arg(operation.step.name);
        if operation.step.many {
            command.arg(operation.key_count());
        }
        for argument in operation.arguments() {
            command.arg(argument);
        }
    }
    command
}

/// Returns the command that runs only this operation, by the script of its step.
pub(crate) fn encode_own(
    script: &Text,
    number: i64,
    not_after_ms: i64,
    operation: &Operation,
) -> Cmd {
    let bytes = "EVALSHA".len() + script.sha.len() + NUMBERS_LEN + operation.parts.size();
    let bytes = bytes + operation.step.name.len();
    let mut command = Cmd::with_capacity(6 + operation.parts.len(), bytes);
    command.arg("EVALSHA").arg(&script.sha);
    command.arg(operation.key_count());
    for key in operation.keys() {
        command.arg(key);
    }
    command.arg(number);
    if operation.step.grants {
        command.arg(not_after_ms);
    }
    for argument in operation.arguments() {
        command.arg(argument);
    }
    command.arg(operation.step.name);
    command
}

/// The replies of a call, one for each operation, to be [`read`].
pub(crate) type Replies = vec::IntoIter<redis::Value>;

/// The reason why a call has no replies.
#[derive(Debug)]
pub(crate) enum NoReplies {
    /// An error of the driver: an error reply, a lost connection, no answer in time.
    Failed(RedisError),
    /// A reply that does not answer this call.
    Malformed(&'static str),
}

/// Returns the replies of call `number`, if `result` is the reply to that call.
pub(crate) fn decode(
    result: Result<redis::Value, RedisError>,
    number: i64,
    operations: usize,
) -> Result<Replies, NoReplies> {
    let replies = match result.map_err(NoReplies::Failed)? {
        redis::Value::Array(replies) => replies,
        redis::Value::BulkString(text) if operations == 1 => {
            return match own_reply(&text) {
                Some((call, reply)) if call == number => Ok(vec![reply].into_iter()),
                Some(_) => Err(NoReplies::Malformed("the reply to another call")),
                None => Err(NoReplies::Malformed("a text of another form")),
            };
        }
        redis::Value::ServerError(error) => return Err(NoReplies::Failed(error.into())),
        redis::Value::Nil => return Err(NoReplies::Malformed("nothing")),
        _ => return Err(NoReplies::Malformed("not a list")),
    };
    if replies.len() != operations + 1 {
        return Err(NoReplies::Malformed("a list of another length"));
    }
    let mut replies = replies.into_iter();
    if replies.next() != Some(redis::Value::Int(number)) {
        return Err(NoReplies::Malformed("the reply to another call"));
    }
    Ok(replies)
}

/// Returns the call's number and the reply from a string that `own` in `call.lua` has returned.
fn own_reply(text: &[u8]) -> Option<(i64, redis::Value)> {
    let text = str::from_utf8(text).ok()?;
    let (call, reply) = match text.split_once(':') {
        None => (text, redis::Value::Nil),
        Some((call, reply)) => (call, redis::Value::Int(reply.parse().ok()?)),
    };
    // The number must look as it was sent, without a sign or leading zeros.
    let as_sent = call.starts_with(|first| ('1'..='9').contains(&first));
    Some((call.parse().ok().filter(|_| as_sent)?, reply))
}

impl NoReplies {
    /// Returns whether nothing ran because the server does not know the script.
    pub(crate) fn script_is_missing(&self) -> bool {
        let noscript = redis::ErrorKind::Server(ServerErrorKind::NoScript);
        matches!(self, Self::Failed(error) if error.kind() == noscript)
    }

    /// Returns whether nothing ran because the server refused one of the keys. The server checks
    /// the keys of a call before it runs the script.
    pub(crate) fn keys_are_refused(&self) -> bool {
        matches!(self, Self::Failed(error) if matches!(error.code(), Some("NOPERM" | "CROSSSLOT")))
    }

    /// Returns where to send the operations if nothing ran, because the slot of the keys is moving
    /// or on another node, or because this node can't serve the slot now.
    pub(crate) fn redirect(&self) -> Option<Redirect> {
        let Self::Failed(error) = self else {
            return None;
        };
        let to = || error.redirect_node().map(|(node, _)| node.to_owned());
        match error.code()? {
            "MOVED" => Some(Redirect::Moved(to().unwrap_or_default())),
            "ASK" => Some(Redirect::Ask(to().unwrap_or_default())),
            "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" => {
                Some(Redirect::Later(reply_text(error)?))
            }
            _ => None,
        }
    }

    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Failed(error) if error.is_timeout())
    }

    /// Returns the failure that each of the operations gets.
    pub(crate) fn into_failure(
        self,
        address: &Arc<str>,
        reply_timeout: impl FnOnce() -> String,
    ) -> Failure {
        let error = match self {
            Self::Failed(error) => error,
            Self::Malformed(what) => {
                return no_answer(&format!("the reply makes no sense ({what})"), address);
            }
        };
        if let Some(text) = reply_text(&error) {
            let failure = Failure::from_reply(&text, address);
            return match failure.cause {
                // The script's own loop has failed, and it is unknown how far it ran.
                Cause::Other(_) => Failure {
                    outcome: Outcome::MayHaveRun,
                    ..failure
                },
                _ => failure,
            };
        }
        let what = if error.is_timeout() {
            format!("no reply within {}", reply_timeout())
        } else {
            format!("the connection was lost ({error})")
        };
        Failure {
            source: Some(Arc::new(error)),
            ..no_answer(&what, address)
        }
    }
}

/// The destination of an operation that a node of a cluster did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Another node, which has the slot.
    Moved(String),
    /// Another node, which has some keys of the slot.
    Ask(String),
    /// A later attempt, at the same node or another one. The text is the node's reason why it can't
    /// run the operation now.
    Later(String),
}

/// The meaning of one operation's reply.
#[derive(Debug)]
pub(crate) enum OperationReply {
    Value(Value),
    /// The operation's slot is not on this node, or only in part. The operation did not run.
    Moving,
    /// The call arrived too late, when the server's clock showed `server_ms`. The operation did not
    /// run.
    Late {
        server_ms: i64,
    },
    /// A failover guard grants nothing for this duration. The operation did not run.
    Guarded {
        remaining: Duration,
    },
    Failed(Failure),
}

/// Reads one operation's reply.
pub(crate) fn read(reply: redis::Value, address: &Arc<str>) -> OperationReply {
    match convert(reply) {
        // No step replies with a string, so a string is always an error.
        Some(Value::Text(error)) => OperationReply::Failed(Failure::from_reply(
            &String::from_utf8_lossy(&error),
            address,
        )),
        Some(Value::List(items)) => match &items[..] {
            [Value::Text(word), Value::Int(now_ms)] if word == b"late" => {
                OperationReply::Late { server_ms: *now_ms }
            }
            [Value::Text(word), Value::Int(left_ms)] if word == b"guarded" => {
                OperationReply::Guarded {
                    remaining: Duration::from_millis(u64::try_from(*left_ms).unwrap_or(0)),
                }
            }
            [Value::Text(word)] if word == b"moving" => OperationReply::Moving,
            _ => OperationReply::Value(Value::List(items)),
        },
        Some(value) => OperationReply::Value(value),
        None => OperationReply::Failed(no_answer("the reply makes no sense", address)),
    }
}

fn convert(value: redis::Value) -> Option<Value> {
    Some(match value {
        redis::Value::Nil => Value::Nil,
        redis::Value::Int(number) if is_exact(number) => Value::Int(number),
        redis::Value::BulkString(text) => Value::Text(text),
        redis::Value::SimpleString(text) => Value::Text(text.into_bytes()),
        redis::Value::Array(items) => {
            Value::List(items.into_iter().map(convert).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// Returns whether a number is exact. The numbers of a script are exact only up to 2^53. With this
/// bound, the sum of two replies, or of a reply and the time, never overflows.
fn is_exact(number: i64) -> bool {
    number.unsigned_abs() <= 1 << 53
}

/// Makes the failure of an operation that may have run.
fn no_answer(what: &str, address: &Arc<str>) -> Failure {
    let what = Shown(what).to_string();
    Failure::no_answer(Outcome::MayHaveRun, what, Arc::clone(address))
}

/// Adds to a failure the permissions that this operation needs, or the kind of primitive that it
/// expects.
pub(crate) fn failure_with_advice(
    operation: &Operation,
    failure: Failure,
    script: &Script,
) -> Failure {
    match failure.cause {
        // A client that has not logged in lacks a password, so an ACL rule would not help.
        Cause::Denied(said) if !said.starts_with("NOAUTH") => Failure {
            cause: Cause::Denied(format!(
                "{said}; {}",
                required_permissions(operation, script)
            )),
            ..failure
        },
        _ => failure.of(operation.step),
    }
}

/// Returns the permissions that an operation needs. No server says which key it denies, and some
/// versions do not say which command.
fn required_permissions(operation: &Operation, script: &Script) -> String {
    let step = operation.step;
    let (commands, guard_key) = match script.guards(step) {
        true => (
            commands(step) + ", and the failover guard INFO, GET and SET",
            format!(" {GUARD_KEY}"),
        ),
        false => (commands(step), String::new()),
    };
    // The name was checked before it was sent.
    let key = operation.name().map(String::from_utf8_lossy);
    let Some(Ok(key)) = key.map(|name| Key::parse(&name)) else {
        let rules = commands.to_lowercase().replace(' ', " +");
        return format!(
            "{} runs {commands}; its user needs ACL SETUSER USER +{rules}",
            step.name,
        );
    };
    format!(
        "{} runs {commands}; a user of this name needs ACL SETUSER USER {}{guard_key} {}",
        step.name,
        key.access_rules(),
        script.command_rules,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::script::Form;
    use crate::backend::step::{LuaFile, Step};

    static LUA: LuaFile = LuaFile::new("\n-- [acquire] -\n\n-- [release] -\n");
    static ACQUIRE: Step = Step {
        name: "test.acquire",
        file: &LUA,
        keys: 2,
        many: false,
        own_script: false,
        while_moving: false,
        uses: &[],
        parameters: &["name", "channel", "argument"],
        grants: true,
        for_holders: false,
        renews: false,
        twin: |_, _| Ok(Value::Nil),
    };
    static RELEASE: Step = Step {
        name: "test.release",
        keys: 1,
        parameters: &["name"],
        grants: false,
        ..ACQUIRE
    };

    static RENEW: Step = Step {
        name: "test.renew",
        keys: 0,
        many: true,
        parameters: &["count", "key", "argument"],
        ..ACQUIRE
    };

    const NUMBER: i64 = 1_234_567_890_123_456;

    fn operations() -> [Operation; 2] {
        [
            Operation::new(&ACQUIRE, ["a", "b", "id"]),
            Operation::new(&RELEASE, ["c"]),
        ]
    }

    #[test]
    fn step_of_many_says_how_many_keys_it_has() {
        let many = Operation::new(&RENEW, ["a", "b", "30000", "1", "2"]);
        let [acquire, release] = operations();
        let sent = encoded(ScriptRef::Sha, &[acquire, many, release]);
        let expected = "5 a b a b c N 77 test.acquire id test.renew 2 30000 1 2 test.release";
        let expected = expected.replace('N', &NUMBER.to_string());
        assert_eq!(sent[2..].join(" "), expected);
    }

    fn encoded(script: ScriptRef, operations: &[Operation]) -> Vec<String> {
        let header = Header {
            script,
            number: NUMBER,
            not_after_ms: 77,
            keys: Keys::Declared,
        };
        encode(&Script::of(&[], Form::Server), header, operations.iter())
            .args_iter()
            .map(|argument| match argument {
                redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                _ => "?".to_owned(),
            })
            .collect()
    }

    fn address() -> Arc<str> {
        Arc::from("redis://h")
    }

    /// Parses these bytes as the driver does.
    fn reply(bytes: &str) -> Result<redis::Value, RedisError> {
        redis::parse_redis_value(bytes.as_bytes())
    }

    fn decoded(bytes: &str, operations: usize) -> Result<Vec<redis::Value>, NoReplies> {
        decode(reply(bytes), NUMBER, operations).map(Iterator::collect)
    }

    fn failure(bytes: &str) -> Failure {
        let no_replies = decoded(bytes, 1).expect_err("no replies");
        no_replies.into_failure(&address(), || "2s".into())
    }

    #[test]
    fn call_encodes_keys_before_steps() {
        let sha = Script::of(&[], Form::Server).any.sha.clone();
        let number = NUMBER.to_string();
        assert_eq!(
            encoded(ScriptRef::Sha, &operations()),
            [
                "EVALSHA",
                &sha,
                "3",
                "a",
                "b",
                "c",
                &number,
                "77",
                "test.acquire",
                "id",
                "test.release"
            ]
        );
    }

    #[test]
    fn the_script_is_named_or_brought() {
        let text = encoded(ScriptRef::Source, &operations());
        assert_eq!(text[..2], ["EVAL", &Script::of(&[], Form::Server).any.text]);
        assert_eq!(text[2..], encoded(ScriptRef::Sha, &operations())[2..]);
    }

    #[test]
    fn call_replies_must_match_its_number() {
        let replies = decoded(&format!("*3\r\n:{NUMBER}\r\n:1\r\n$-1\r\n"), 2);
        assert_eq!(
            replies.expect("its replies"),
            [redis::Value::Int(1), redis::Value::Nil]
        );
        for (bytes, what) in [
            (format!("*2\r\n:{NUMBER}\r\n:1\r\n"), "another length"),
            (
                format!("*3\r\n:{}\r\n:1\r\n:1\r\n", NUMBER + 1),
                "another call",
            ),
            ("$-1\r\n".into(), "nothing"),
            ("+OK\r\n".into(), "not a list"),
        ] {
            match decoded(&bytes, 2) {
                Err(NoReplies::Malformed(said)) => assert!(said.contains(what), "{said}"),
                other => panic!("{bytes}: {other:?}"),
            }
        }
    }

    #[test]
    fn text_is_the_reply_to_one_operation() {
        let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        for (said, reply) in [
            (format!("{NUMBER}"), redis::Value::Nil),
            (format!("{NUMBER}:0"), redis::Value::Int(0)),
            (format!("{NUMBER}:-1"), redis::Value::Int(-1)),
        ] {
            assert_eq!(decoded(&text(&said), 1).expect("its reply"), [reply]);
            assert!(decoded(&text(&said), 2).is_err(), "{said}");
        }
        let other = NUMBER + 1;
        for said in [
            format!("{other}"),
            format!("{other}:1"),
            format!("{NUMBER}:"),
            format!("{NUMBER}:1.5"),
            format!("{NUMBER}:1:1"),
            format!("{NUMBER}1"),
            format!("+{NUMBER}"),
            format!("0{NUMBER}:1"),
            String::new(),
        ] {
            let replies = decoded(&text(&said), 1);
            assert!(
                matches!(replies, Err(NoReplies::Malformed(_))),
                "{said}: {replies:?}"
            );
        }
    }

    #[test]
    fn call_error_says_whether_it_ran() {
        let noscript = decoded("-NOSCRIPT No matching script.\r\n", 1).expect_err("an error");
        assert!(noscript.script_is_missing() && !noscript.keys_are_refused());
        let refused = decoded("-NOPERM No permissions to access a key\r\n", 1);
        let refused = refused.expect_err("an error");
        assert!(refused.keys_are_refused() && !refused.script_is_missing());
        assert_eq!(failure("-OOM no memory\r\n").outcome, Outcome::DidNotRun);
        assert_eq!(failure("-ERR loop failed\r\n").outcome, Outcome::MayHaveRun);
        assert_eq!(failure("$-1\r\n").outcome, Outcome::MayHaveRun);
    }

    #[test]
    fn a_call_without_a_reply_may_have_run() {
        let lost = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let late = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        for (error, timeout, text) in [
            (late(), true, "no reply within 2s"),
            (lost(), false, "the connection was lost"),
        ] {
            let no_replies = decode(Err(error), NUMBER, 1).expect_err("an error");
            assert_eq!(no_replies.is_timeout(), timeout);
            let failure = no_replies.into_failure(&address(), || "2s".into());
            assert_eq!(failure.outcome, Outcome::MayHaveRun);
            assert!(failure.cause.to_string().starts_with(text), "{failure:?}");
        }
    }

    #[test]
    fn operation_reply_is_value_failure_or_late() {
        let read = |bytes: &str| read(reply(bytes).expect("it can be parsed"), &address());
        for (bytes, value) in [
            (":9007199254740992\r\n", Value::Int(1 << 53)),
            ("$-1\r\n", Value::Nil),
            (
                "*1\r\n$1\r\nx\r\n",
                Value::List(vec![Value::Text(b"x".into())]),
            ),
        ] {
            assert!(matches!(read(bytes), OperationReply::Value(read) if read == value));
        }
        let late = read("*2\r\n$4\r\nlate\r\n:5\r\n");
        assert!(
            matches!(late, OperationReply::Late { server_ms: 5 }),
            "{late:?}"
        );
        for (ms, expected) in [(5, 5), (-5, 0)] {
            let guarded = read(&format!("*2\r\n$7\r\nguarded\r\n:{ms}\r\n"));
            let expected = Duration::from_millis(expected);
            assert!(
                matches!(guarded, OperationReply::Guarded { remaining } if remaining == expected)
            );
        }
        for (bytes, outcome) in [
            ("$9\r\nWRONGTYPE\r\n", Outcome::DidNotRun),
            // The smallest integer that a script can't distinguish from its neighbour.
            (":9007199254740993\r\n", Outcome::MayHaveRun),
            ("*1\r\n:9007199254740993\r\n", Outcome::MayHaveRun),
        ] {
            match read(bytes) {
                OperationReply::Failed(failure) => assert_eq!(failure.outcome, outcome, "{bytes}"),
                other => panic!("{bytes}: {other:?}"),
            }
        }
    }

    #[test]
    fn denied_operation_names_missing_permissions() {
        let script = Script::of(&[], Form::Server);
        let [operation, _] = operations();
        let denied =
            |said| failure_with_advice(&operation, Failure::from_reply(said, &address()), &script);
        let said = denied("NOPERM no key").cause.to_string();
        assert!(
            said.starts_with("NOPERM no key; test.acquire runs "),
            "{said}"
        );
        assert!(said.contains("ACL SETUSER USER "), "{said}");
        let guarded = Script::of(&[], Form::Guarded { span_ms: 1 });
        let said = Failure::from_reply("NOPERM no key", &address());
        let said = failure_with_advice(&operation, said, &guarded)
            .cause
            .to_string();
        assert!(said.contains(" ~leasehold:guard "), "{said}");
        let nobody = denied("NOAUTH log in").cause.to_string();
        assert_eq!(nobody, "NOAUTH log in", "no permission is missing");
    }
}
