//! The fence checks refuse late holders in real databases, and in Redis.

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold::fence::{self, Dialect, Sql, Stale};
use leasehold::{Client, ErrorKind};
use leasehold_testkit::database::{Database, Kind, Session};
use leasehold_testkit::{RedisServer, Reply, eventually};

const SOON: Duration = Duration::from_secs(60);
/// The number of attempts with which each fence is tested.
const ATTEMPTS: usize = 10_000;
/// The number of attempts that are sent at a time. It is small, so that their replies do not fill
/// the pipe.
const CHUNK: usize = 500;

/// Lets only one test at a time run databases. Creating all of them at once would occupy the whole
/// machine.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A database with the table of fences, and the statements for it.
struct Place {
    kind: Kind,
    sql: Sql<'static>,
    database: Database,
}

impl Place {
    /// Returns a place for each database that is installed.
    fn all() -> Vec<Self> {
        let kinds = [
            (Kind::Postgres, Dialect::Postgres),
            (Kind::MariaDb, Dialect::MySql),
            (Kind::Sqlite, Dialect::Sqlite),
        ];
        kinds
            .into_iter()
            .filter_map(|(kind, dialect)| {
                let Some(database) = Database::start(kind).unwrap() else {
                    println!("skipped: {kind:?} is not installed");
                    return None;
                };
                let sql = Sql::of(dialect, "fences");
                let place = Self {
                    kind,
                    sql,
                    database,
                };
                let ledger = match kind {
                    Kind::Postgres => "id BIGSERIAL PRIMARY KEY",
                    Kind::MariaDb => "id BIGINT AUTO_INCREMENT PRIMARY KEY",
                    Kind::Sqlite => "id INTEGER PRIMARY KEY AUTOINCREMENT",
                };
                let mut session = place.database.session().unwrap();
                session.run(&format!(
                    "{};\nCREATE TABLE ledger ({ledger}, fence BIGINT NOT NULL);\n{}",
                    place.sql.create_table(),
                    place.add("x")
                ));
                Some(place)
            })
            .collect()
    }

    fn session(&self) -> Session {
        let mut session = self.database.session().unwrap();
        let raise = self.sql.raise();
        session.run(&match self.kind {
            Kind::Postgres => format!("PREPARE raise (text, bigint) AS {raise};"),
            Kind::MariaDb => format!("PREPARE raise FROM '{raise}';"),
            Kind::Sqlite => ".parameter init".to_owned(),
        });
        session
    }

    fn add(&self, name: &str) -> String {
        let add = self.sql.add();
        add.map_or_else(String::new, |add| {
            format!("PREPARE adds FROM '{add}';\nEXECUTE adds USING '{name}';")
        })
    }

    /// Returns the statements that raise the fence and print how many rows they have affected.
    fn raise(&self, token: u64) -> String {
        let token = fence::bind(token);
        match self.kind {
            Kind::Postgres => format!("EXECUTE raise ('x', {token});"),
            Kind::MariaDb => format!("EXECUTE raise USING 'x', {token};\nSELECT ROW_COUNT();"),
            Kind::Sqlite => {
                let raise = self.sql.raise();
                let parameters = format!(".parameter set ?1 \"'x'\"\n.parameter set ?2 {token}");
                format!("{parameters}\n{raise};\nSELECT changes();")
            }
        }
    }

    /// Returns one transaction that raises the fence, and writes the token into the ledger if that
    /// has affected a row.
    fn transaction(&self, token: u64) -> String {
        let token = fence::bind(token);
        match self.kind {
            Kind::Postgres => format!(
                "DO $do$ DECLARE n bigint; BEGIN EXECUTE '{}' USING 'x', {token}::bigint; \
                 GET DIAGNOSTICS n = ROW_COUNT; \
                 IF n > 0 THEN INSERT INTO ledger (fence) VALUES ({token}); END IF; END $do$;",
                self.sql.raise()
            ),
            Kind::MariaDb => format!(
                "START TRANSACTION;\nEXECUTE raise USING 'x', {token};\nSET @n = ROW_COUNT();\n\
                 INSERT INTO ledger (fence) SELECT {token} FROM DUAL WHERE @n > 0;\nCOMMIT;"
            ),
            Kind::Sqlite => {
                let raise = self.sql.raise();
                let raise = raise.replace("?1", "'x'").replace("?2", &token.to_string());
                format!(
                    "BEGIN IMMEDIATE;\n{raise};\n\
                     INSERT INTO ledger (fence) SELECT {token} WHERE changes() > 0;\nCOMMIT;"
                )
            }
        }
    }
}

/// Returns the numbers of rows that a session printed.
fn rows(lines: &[String]) -> Vec<u64> {
    let counts = lines.iter().filter_map(|line| {
        let count = line.strip_prefix("INSERT 0 ").unwrap_or(line);
        count.parse().ok()
    });
    counts.collect()
}

#[test]
fn databases_refuse_a_holder_whose_lease_has_ended() {
    let _turn = turn();
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (late, next) = runtime.block_on(async {
        let client = Client::connect(&server.url()).await.unwrap();
        let lock = client.fenced_lock("stock:7");
        let short = lock.clone().fixed_lease(Duration::from_millis(100));
        (
            short.acquire().await.unwrap(),
            lock.acquire().await.unwrap(),
        )
    });
    for place in Place::all() {
        let mut session = place.session();
        let mut write = |token| {
            let rows = rows(&session.run(&place.raise(token)));
            let [rows] = rows[..] else {
                panic!("{:?}: {rows:?}", place.kind);
            };
            fence::verdict(token, rows)
        };
        write(late.token()).unwrap();
        write(late.token()).expect("equal tokens are accepted");
        write(next.token()).unwrap();
        assert_eq!(write(late.token()), Err(Stale::new(late.token())));
        write(next.token()).unwrap();
        let read = place.sql.fence().replace(['?', '$'], "'x' -- ");
        let fence = session.run(&format!("{read}\n;"));
        assert_eq!(fence, [next.token().to_string()], "{:?}", place.kind);
    }
    let released = runtime.block_on(late.release());
    assert_eq!(released.unwrap_err().kind(), ErrorKind::Lost);
}

/// The verdict of each attempt is compared with a model of the fence.
#[test]
fn verdicts_of_ten_thousand_attempts_are_right() {
    let _turn = turn();
    for place in Place::all() {
        let mut session = place.session();
        let (mut fence, mut refused) = (0, 0);
        for chunk in 0..ATTEMPTS / CHUNK {
            let first = chunk * CHUNK;
            let tokens: Vec<_> = (first..first + CHUNK)
                .map(|number| number as u64 / 4 + fastrand::u64(1..8))
                .collect();
            let statements: Vec<_> = tokens.iter().map(|token| place.raise(*token)).collect();
            let rows = rows(&session.run(&statements.join("\n")));
            assert_eq!(rows.len(), CHUNK, "{:?}", place.kind);
            for (token, rows) in tokens.into_iter().zip(rows) {
                let is_late = token < fence;
                let verdict = fence::verdict(token, rows);
                assert_eq!(verdict.is_err(), is_late, "{token} after {fence}");
                fence = fence.max(token);
                refused += usize::from(is_late);
            }
        }
        assert!((1..ATTEMPTS).contains(&refused), "{refused}");
    }
}

/// Four connections write at the same time. The rows are numbered in the order of the transactions,
/// because each transaction locks the fence before it writes.
#[test]
fn no_late_transaction_comes_through_among_ten_thousand() {
    let _turn = turn();
    for place in Place::all() {
        thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    let mut session = place.session();
                    for chunk in 0..ATTEMPTS / 4 / CHUNK {
                        let mut statements = String::new();
                        for number in 0..CHUNK {
                            let token = (chunk * CHUNK + number) as u64 + fastrand::u64(1..40);
                            writeln!(statements, "{}", place.transaction(token)).unwrap();
                        }
                        session.run(&statements);
                    }
                });
            }
        });
        let written = place.session().run("SELECT fence FROM ledger ORDER BY id;");
        let written = rows(&written);
        assert!(written.is_sorted(), "{:?}: {written:?}", place.kind);
        assert!((1..ATTEMPTS).contains(&written.len()), "{}", written.len());
    }
}

/// Returns whether a transaction in this database waits for another transaction.
fn one_waits(place: &Place, observer: &mut Session) -> bool {
    let waiting = match place.kind {
        Kind::Postgres => "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock';",
        // `INNODB_TRX` is not used: it is not updated while it is read several times in a tenth of
        // a second.
        _ => {
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
             WHERE VARIABLE_NAME = 'INNODB_ROW_LOCK_CURRENT_WAITS';"
        }
    };
    rows(&observer.run(waiting)) == [1]
}

#[test]
fn late_transaction_waits_for_the_first_and_is_refused() {
    let _turn = turn();
    for place in Place::all() {
        if place.kind == Kind::Sqlite {
            // SQLite runs transactions one after the other.
            continue;
        }
        let level = match place.kind {
            Kind::Postgres => "SET default_transaction_isolation = 'read committed';",
            _ => "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;",
        };
        let [mut next, mut late, mut observer] = [(); 3].map(|()| place.session());
        next.run(level);
        late.run(level);
        for (end, token, rows_of_late) in [("COMMIT;", 9, 0), ("ROLLBACK;", 19, 1)] {
            next.run("BEGIN;");
            assert_eq!(rows(&next.run(&place.raise(token))), [1]);
            late.run("BEGIN;");
            // This token is late, unless the other transaction is undone.
            late.send(&place.raise(token - 4 + rows_of_late * 3));
            eventually("it waits", SOON, || one_waits(&place, &mut observer));
            next.run(end);
            assert_eq!(rows(&late.finish()), [rows_of_late], "{:?}", place.kind);
            late.run("COMMIT;");
        }
    }
}

/// This is the trap that the page about fencing describes.
#[test]
fn append_only_table_without_a_fence_lets_a_late_holder_in() {
    let _turn = turn();
    for place in Place::all() {
        if place.kind != Kind::Postgres {
            continue;
        }
        let append = |token| {
            format!(
                "INSERT INTO ledger (fence) SELECT {token} WHERE NOT EXISTS \
                 (SELECT 1 FROM ledger WHERE fence > {token});"
            )
        };
        let [mut next, mut late] = [(); 2].map(|()| place.session());
        next.run("BEGIN;");
        assert_eq!(rows(&next.run(&append(2))), [1]);
        assert_eq!(
            rows(&late.run(&append(1))),
            [1],
            "it does not see the other"
        );
        next.run("COMMIT;");
        let written = rows(&late.run("SELECT fence FROM ledger ORDER BY id;"));
        assert_eq!(written, [2, 1]);
    }
}

fn evaluated(server: &RedisServer, script: &str, token: &str, arguments: &[&str]) -> Reply {
    let keys = ["{stock:7}:fence", "{stock:7}:value"];
    let words = ["EVAL", script, "2", keys[0], keys[1], token];
    server.command(&[&words[..], arguments].concat()).unwrap()
}

#[test]
fn scripts_refuse_late_tokens_and_change_nothing() {
    let server = RedisServer::start().unwrap();
    let set = fence::redis::set();
    let write = |token: u64, value: &str| {
        let reply = evaluated(&server, &set, &token.to_string(), &[value]);
        match fence::redis::stale(token, &format!("{reply:?}")) {
            Some(stale) => Err(stale),
            None => {
                assert_eq!(reply.as_int(), Some(1), "{reply:?}");
                Ok(())
            }
        }
    };
    let value = || {
        let reply = server.command(&["GET", "{stock:7}:value"]).unwrap();
        reply.as_text().map(str::to_owned)
    };
    // This number is just below the limit up to which Lua counts exactly.
    let last = fence::LIMIT - 1;
    let (mut fence, mut refused) = (0, 0);
    for number in 0..ATTEMPTS as u64 {
        let token = last - ATTEMPTS as u64 + number.saturating_sub(fastrand::u64(0..8));
        let told = number.to_string();
        match write(token, &told) {
            Ok(()) => {
                assert!(token >= fence);
                fence = token;
            }
            Err(stale) => {
                assert!(token < fence);
                assert_eq!(stale, Stale::new(token).with_fence(fence));
                refused += 1;
                continue;
            }
        }
        assert_eq!(value(), Some(told));
    }
    assert!((1..ATTEMPTS).contains(&refused), "{refused}");
}

#[test]
fn scripts_keep_an_expiry_and_refuse_what_is_no_token() {
    let server = RedisServer::start().unwrap();
    let hset = fence::redis::hset();
    let reply = evaluated(&server, &hset, "5", &["a", "1", "b", "2"]);
    assert_eq!(reply.as_int(), Some(1));
    server
        .command(&["EXPIRE", "{stock:7}:fence", "1000"])
        .unwrap();
    let take = fence::redis::eval("return redis.call('HINCRBY', KEYS[2], ARGV[2], -1)");
    let reply = evaluated(&server, &take, "6", &["b"]);
    assert_eq!(reply.as_int(), Some(1), "{reply:?}");
    let ttl = server.command(&["TTL", "{stock:7}:fence"]).unwrap();
    assert!(ttl.as_int().unwrap() > 0);
    let late = format!("{:?}", evaluated(&server, &take, "5", &["b"]));
    let stale = Stale::new(5).with_fence(6);
    assert_eq!(fence::redis::stale(5, &late), Some(stale));
    for token in ["", "x", "-1", "6.5", "nan", "inf", "9007199254740992"] {
        let reply = format!("{:?}", evaluated(&server, &take, token, &["b"]));
        assert!(reply.contains("not a fencing token"), "{token}: {reply}");
    }
    let left = server.command(&["HGET", "{stock:7}:value", "b"]).unwrap();
    assert_eq!(left.as_text(), Some("1"));
    for other in ["many", "nan", "inf", "-1", "6.5", "9007199254740992"] {
        server.command(&["SET", "{stock:7}:fence", other]).unwrap();
        let reply = format!("{:?}", evaluated(&server, &take, "7", &["b"]));
        assert!(reply.contains("does not contain"), "{other}: {reply}");
    }
}
