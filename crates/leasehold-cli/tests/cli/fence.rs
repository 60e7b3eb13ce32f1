//! `leasehold fence` prints statements for databases.

use leasehold_testkit::database::{Database, Kind};

use crate::support::{done, leasehold};

fn sql(options: &[&str]) -> String {
    let mut command = leasehold();
    let printed = done(command.args(["fence", "sql"]).args(options)).expect_code(0);
    assert_eq!(printed.stderr, "");
    printed.stdout
}

#[test]
fn printed_statements_run_in_each_database() {
    for (kind, dialect) in [
        (Kind::Postgres, "postgres"),
        (Kind::MariaDb, "mysql"),
        (Kind::Sqlite, "sqlite"),
    ] {
        let script = sql(&["--dialect", dialect, "--table", "my fences"]);
        assert!(script.contains("raise"), "{script}");
        assert_eq!(script.contains("INSERT IGNORE"), dialect == "mysql");
        let Some(database) = Database::start(kind).expect("it starts") else {
            eprintln!("skipped: {kind:?} is not installed");
            continue;
        };
        let mut session = database.session().expect("it runs");
        // Twice: the table may exist already.
        session.run(&script);
        session.run(&script);
        let quote = if dialect == "mysql" { "`" } else { "\"" };
        let count = format!("SELECT count(*) FROM {quote}my fences{quote};");
        assert_eq!(session.run(&count), ["0"], "{dialect}");
    }
}

#[test]
fn bad_tables_and_dialects_are_refused() {
    for options in [
        &["--dialect", "oracle"][..],
        &["--dialect", "mysql", "--table", ""],
        &["--dialect", "mysql", "--table", "a..b"],
        &["--table", "fences"],
    ] {
        done(leasehold().args(["fence", "sql"]).args(options)).expect_code(2);
    }
}
