//! The flags of `leasehold fence`.

use clap::{Args, Subcommand, ValueEnum};
use leasehold::fence::Dialect;

const SQL_HELP: &str = "\
The statements keep a fence for each resource: the greatest fencing token that was accepted. Run \
the first statement once. Begin each transaction with the statement `raise`. If `raise` affects no \
row, a later holder has already written: roll the transaction back. leasehold sends nothing to the \
database.

Example:
  leasehold fence sql --dialect postgres --table fences | psql";

#[derive(Args)]
pub(crate) struct Fence {
    #[command(subcommand)]
    pub(crate) action: FenceAction,
}

#[derive(Subcommand)]
pub(crate) enum FenceAction {
    /// Print SQL that makes a database refuse writes from late holders
    #[command(after_long_help = SQL_HELP)]
    Sql {
        /// Kind of the database
        #[arg(long, value_enum)]
        dialect: DialectName,

        /// Table of the fences; it may begin with a schema
        #[arg(long, value_name = "TABLE", default_value = "fences", value_parser = table)]
        table: String,
    },
}

/// A dialect as the command line names it.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum DialectName {
    /// PostgreSQL
    Postgres,
    /// MySQL and MariaDB
    Mysql,
    /// SQLite
    Sqlite,
}

impl From<DialectName> for Dialect {
    fn from(name: DialectName) -> Self {
        match name {
            DialectName::Postgres => Self::Postgres,
            DialectName::Mysql => Self::MySql,
            DialectName::Sqlite => Self::Sqlite,
        }
    }
}

fn table(text: &str) -> Result<String, String> {
    match text.split('.').any(str::is_empty) || text.contains(['\0', '\n', '\r']) {
        true => Err(
            "a part of the name is empty or has a line break; write fences or app.fences"
                .to_owned(),
        ),
        false => Ok(text.to_owned()),
    }
}
