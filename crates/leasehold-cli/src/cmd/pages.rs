//! `leasehold completions` and `leasehold man`: what is made from the command line's definitions.

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output;

pub(crate) async fn completions(shell: Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut script);
    output::result(String::from_utf8_lossy(&script).trim_end()).await?;
    Ok(Exit::Success)
}

/// Writes a page for leasehold and one for each sub-command, or prints the first.
pub(crate) async fn man(folder: Option<&Path>) -> Result<Exit, Failure> {
    let command = Cli::command();
    let Some(folder) = folder else {
        let page = rendered(command).map_err(|error| Failure::io("can't make the page", error))?;
        output::result(String::from_utf8_lossy(&page).trim_end()).await?;
        return Ok(Exit::Success);
    };
    let sub_commands = command.get_subcommands().filter(|one| !one.is_hide_set());
    let pages = sub_commands.map(|one| {
        let name = format!("leasehold-{}", one.get_name());
        // With the name that it is called by: the page says how to write it.
        (name.clone(), one.clone().display_name(name))
    });
    let pages: Vec<_> = pages.collect();
    for (name, command) in std::iter::once(("leasehold".to_owned(), command)).chain(pages) {
        let file = folder.join(format!("{name}.1"));
        let written = rendered(command).and_then(|page| std::fs::write(&file, page));
        written.map_err(|error| Failure::io(format!("can't write {}", file.display()), error))?;
    }
    Ok(Exit::Success)
}

fn rendered(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
