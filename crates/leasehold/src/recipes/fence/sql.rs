//! SQL statements that check a token.

/// The syntax of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL, and databases that speak its dialect.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    /// SQLite from 3.24 on.
    Sqlite,
}

/// The statements for a table of fences. It has one row for each protected resource, with the
/// greatest token that was accepted. All values are parameters, so each statement can be prepared
/// once, with any driver.
///
/// In a transaction, run [`raise`](Self::raise) before anything else. Its lock on the row keeps
/// later holders out until the commit. So the check and the changes are one step, even at the
/// isolation level READ COMMITTED.
///
/// ```sql
/// BEGIN;
/// -- raise, with the name and the token. No row affected: ROLLBACK and stop.
/// UPDATE stock SET quantity = 9 WHERE id = 7;
/// INSERT INTO orders VALUES (42, 7);
/// COMMIT;
/// ```
///
/// # Examples
///
/// ```
/// use leasehold::fence::{self, Sql};
///
/// const FENCES: Sql<'_> = Sql::postgres("fences");
///
/// # struct Transaction;
/// # impl Transaction { fn execute(&self, _: &str, _: (&str, i64)) -> u64 { 1 } }
/// # let (transaction, token) = (Transaction, 7);
/// let rows = transaction.execute(&FENCES.raise(), ("stock:7", fence::bind(token)));
/// fence::verdict(token, rows)?;
/// # Ok::<(), fence::Stale>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sql<'a> {
    dialect: Dialect,
    table: &'a str,
}

impl<'a> Sql<'a> {
    /// Returns the statements for a table in PostgreSQL. `table` may begin with a schema:
    /// `app.fences`.
    ///
    /// # Panics
    ///
    /// Panics if the name or one of its parts is empty, or if it contains NUL. In a constant, this
    /// is a compile-time error.
    #[must_use]
    pub const fn postgres(table: &'a str) -> Self {
        Self::of(Dialect::Postgres, table)
    }

    /// Returns the statements for a table in MySQL or MariaDB. `table` may begin with a database.
    /// The table must use a storage engine with transactions, such as InnoDB.
    ///
    /// # Panics
    ///
    /// Same as [`postgres`](Self::postgres).
    #[must_use]
    pub const fn mysql(table: &'a str) -> Self {
        Self::of(Dialect::MySql, table)
    }

    /// Returns the statements for a table in SQLite. `table` may begin with a database.
    ///
    /// # Panics
    ///
    /// Same as [`postgres`](Self::postgres).
    #[must_use]
    pub const fn sqlite(table: &'a str) -> Self {
        Self::of(Dialect::Sqlite, table)
    }

    /// Returns the statements for a table in a database with this dialect.
    ///
    /// # Panics
    ///
    /// Same as [`postgres`](Self::postgres).
    #[must_use]
    pub const fn of(dialect: Dialect, table: &'a str) -> Self {
        let bytes = table.as_bytes();
        let (mut at, mut part) = (0, 0);
        while at < bytes.len() {
            assert!(bytes[at] != 0, "the name of a table can't contain NUL");
            if bytes[at] == b'.' {
                assert!(part > 0, "a part of the table's name is empty");
                part = 0;
            } else {
                part += 1;
            }
            at += 1;
        }
        assert!(
            part > 0,
            "the name of the table, or its last part, is empty"
        );
        Self { dialect, table }
    }

    /// Returns the statement that creates the table if it does not exist. It has no parameters.
    #[must_use]
    pub fn create_table(&self) -> String {
        let table = self.quoted(self.table);
        match self.dialect {
            Dialect::Postgres => format!(
                "CREATE TABLE IF NOT EXISTS {table} (name TEXT PRIMARY KEY, fence BIGINT NOT NULL)"
            ),
            // Use a binary type: as text, names that differ only in case or in trailing blanks
            // would be equal.
            Dialect::MySql => format!(
                "CREATE TABLE IF NOT EXISTS {table} (name VARBINARY(1000) NOT NULL PRIMARY KEY, \
                 fence BIGINT NOT NULL DEFAULT 0, writes BIGINT NOT NULL DEFAULT 0) \
                 ENGINE = InnoDB"
            ),
            Dialect::Sqlite => format!(
                "CREATE TABLE IF NOT EXISTS {table} (name TEXT PRIMARY KEY, fence INTEGER NOT NULL)"
            ),
        }
    }

    /// Returns the statement that adds a name, if the database needs this before
    /// [`raise`](Self::raise): only MySQL does. Its parameter is the name. It changes nothing if
    /// the name exists. Run it before the transaction of `raise` and not inside it, because two
    /// such transactions can deadlock. If the name was not added, `raise` affects no row, as if the
    /// token were late.
    #[must_use]
    pub fn add(&self) -> Option<String> {
        let table = self.quoted(self.table);
        match self.dialect {
            Dialect::MySql => Some(format!("INSERT IGNORE INTO {table} (name) VALUES (?)")),
            Dialect::Postgres | Dialect::Sqlite => None,
        }
    }

    /// Returns the statement that makes the token the fence of a name, unless the fence is greater.
    /// Its parameters are the name and the token, as a signed integer of 64 bits
    /// ([`bind`](super::bind)). The number of affected rows is the [`verdict`](super::verdict). On
    /// MySQL, it does not matter whether the driver counts matched or changed rows.
    #[must_use]
    pub fn raise(&self) -> String {
        let table = self.quoted(self.table);
        match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => {
                let (name, token) = (self.parameter(1), self.parameter(2));
                format!(
                    "INSERT INTO {table} AS held (name, fence) VALUES ({name}, {token}) \
                     ON CONFLICT (name) DO UPDATE SET fence = excluded.fence \
                     WHERE held.fence <= excluded.fence"
                )
            }
            // `ON DUPLICATE KEY UPDATE` would be wrong: a driver that counts matched rows reports 1
            // row for an insert, and also for a late token. `writes` changes the row even if the
            // token is equal, because other drivers count only changed rows.
            Dialect::MySql => format!(
                "UPDATE {table} AS held JOIN (SELECT CAST(? AS BINARY) AS name, \
                 CAST(? AS SIGNED) AS token) AS new ON held.name = new.name \
                 SET held.fence = new.token, held.writes = held.writes + 1 \
                 WHERE held.fence <= new.token"
            ),
        }
    }

    /// Returns the statement that reads the fence of a name, for messages. Its parameter is the
    /// name.
    #[must_use]
    pub fn fence(&self) -> String {
        let (table, name) = (self.quoted(self.table), self.parameter(1));
        format!("SELECT fence FROM {table} WHERE name = {name}")
    }

    /// Returns the condition that the token stored in a column of the protected row is not greater
    /// than the holder's token: `"fence" <= $3`. The holder's token is the parameter with the
    /// number `parameter`; in MySQL, parameters have no numbers.
    ///
    /// Put it into the `WHERE` of the change, with [`assign`](Self::assign) in its `SET`. Then pass
    /// the number of affected rows to [`verdict`](super::verdict). 0 rows can also mean that the
    /// row does not exist. On MySQL, an update that changes no value affects 0 rows, unless the
    /// driver counts matched rows. So also change another column, such as a counter.
    ///
    /// ```
    /// use leasehold::fence::Sql;
    ///
    /// const SQL: Sql<'_> = Sql::postgres("fences");
    ///
    /// let update = format!(
    ///     "UPDATE stock SET quantity = $1, {} WHERE id = $2 AND {}",
    ///     SQL.assign("fence", 3),
    ///     SQL.check("fence", 3),
    /// );
    /// assert_eq!(
    ///     update,
    ///     r#"UPDATE stock SET quantity = $1, "fence" = $3 WHERE id = $2 AND "fence" <= $3"#
    /// );
    /// ```
    #[must_use]
    pub fn check(&self, column: &str, parameter: u32) -> String {
        format!("{} <= {}", self.quoted(column), self.parameter(parameter))
    }

    /// Returns the assignment of the holder's token to a column of the protected row: see
    /// [`check`](Self::check).
    #[must_use]
    pub fn assign(&self, column: &str, parameter: u32) -> String {
        format!("{} = {}", self.quoted(column), self.parameter(parameter))
    }

    fn parameter(&self, number: u32) -> String {
        match self.dialect {
            Dialect::Postgres => format!("${number}"),
            Dialect::MySql => "?".to_owned(),
            Dialect::Sqlite => format!("?{number}"),
        }
    }

    /// Returns an identifier with each part quoted, so that it can't break out of the quotes.
    fn quoted(&self, identifier: &str) -> String {
        let quote = match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => "\"",
            Dialect::MySql => "`",
        };
        let parts = identifier.split('.').map(|part| {
            let part = part.replace(quote, &quote.repeat(2));
            format!("{quote}{part}{quote}")
        });
        parts.collect::<Vec<_>>().join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_can_not_end_their_quotes() {
        let hostile = Sql::postgres("app.f\"; DROP TABLE x; --");
        let read = hostile.fence();
        let table = r#""app"."f""; DROP TABLE x; --""#;
        assert_eq!(read, format!("SELECT fence FROM {table} WHERE name = $1"));
        let hostile = Sql::mysql("f`; DROP TABLE x; --").fence();
        assert!(hostile.contains("`f``; DROP TABLE x; --`"), "{hostile}");
        assert_eq!(Sql::mysql("f").check("a`b", 9), "`a``b` <= ?");
        assert_eq!(Sql::sqlite("f").assign("a", 9), r#""a" = ?9"#);
    }

    #[test]
    fn names_without_text_are_refused() {
        for name in ["", ".", "a.", ".a", "a..b", "a\0"] {
            let made = std::panic::catch_unwind(|| Sql::sqlite(name));
            assert!(made.is_err(), "{name:?}");
        }
    }
}
