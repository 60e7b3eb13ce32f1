//! `leasehold fence`: prints SQL that refuses the writes of late holders.

use leasehold::fence::Sql;

use crate::cli::{Fence, FenceAction};
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output;

pub(crate) async fn fence(args: Fence) -> Result<Exit, Failure> {
    let FenceAction::Sql { dialect, table } = args.action;
    output::result(statements(Sql::of(dialect.into(), &table))).await?;
    Ok(Exit::Success)
}

/// Returns a script. Only its first statement can run as it is. The other statements have
/// parameters, so the script contains them as comments.
fn statements(sql: Sql<'_>) -> String {
    let mut text = format!(
        "-- Run once.\n{};\n\n\
         -- The other statements have parameters, so prepare them with your driver.\n",
        sql.create_table()
    );
    let mut add = |what: &str, statement: &str| {
        text += &format!("--\n-- {what}\n--   {statement};\n");
    };
    if let Some(statement) = sql.add() {
        add(
            "Once for each name, before its first transaction (name):",
            &statement,
        );
    }
    add(
        "raise: first in each transaction (name, $LEASEHOLD_TOKEN). No row affected: roll back.",
        &sql.raise(),
    );
    add("The fence of a name, for messages (name):", &sql.fence());
    text.truncate(text.trim_end().len());
    text
}
