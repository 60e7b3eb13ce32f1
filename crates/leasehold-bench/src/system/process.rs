//! A client in its own process. The process runs this program, which gets its tasks through a pipe.

use std::process::Stdio;

use clap::Args;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, stdin, stdout};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use super::{System, Worker, here};
use crate::Result;
use crate::task::{Done, Task};

/// The arguments with which the process is started.
#[derive(Args, Debug)]
pub(crate) struct Apart {
    system: System,
    url: String,
}

impl Apart {
    /// Does the tasks that arrive on stdin, one per line, until stdin ends.
    pub(crate) async fn run(self) -> Result<()> {
        let worker = here(self.system, &self.url).await?;
        let mut requests = BufReader::new(stdin()).lines();
        let mut answers = stdout();
        while let Some(request) = requests.next_line().await? {
            let done = worker.run(serde_json::from_str(&request)?).await;
            // If the task fails, the message of the error is sent.
            let done = done.map_err(|error| error.to_string());
            let answer = format!("{}\n", serde_json::to_string(&done)?);
            answers.write_all(answer.as_bytes()).await?;
            answers.flush().await?;
        }
        Ok(())
    }
}

/// A handle for the process, which is killed when the handle is dropped.
pub(super) struct Process {
    pid: u32,
    pipes: Mutex<Pipes>,
}

struct Pipes {
    // The handle is kept because dropping it kills the process.
    _child: Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(super) async fn start(system: System, url: &str) -> Result<Self> {
        // This runs the current program even if its file was replaced by a newer build.
        let mut child = Command::new("/proc/self/exe")
            .args(["worker", system.name(), url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            pid: child.id().ok_or("the process has ended")?,
            pipes: Mutex::new(Pipes {
                requests: child.stdin.take().ok_or("no pipe to the process")?,
                answers: BufReader::new(child.stdout.take().ok_or("no pipe from it")?).lines(),
                _child: child,
            }),
        })
    }
}

impl Worker for Process {
    fn run(&self, task: Task) -> BoxFuture<'_, Result<Done>> {
        Box::pin(async move {
            let request = format!("{}\n", serde_json::to_string(&task)?);
            let mut pipes = self.pipes.lock().await;
            pipes.requests.write_all(request.as_bytes()).await?;
            let answer = pipes.answers.next_line().await?;
            let answer = answer.ok_or("a process ended before its answer")?;
            Ok(serde_json::from_str::<Result<Done, String>>(&answer)??)
        })
    }

    fn pid(&self) -> u32 {
        self.pid
    }
}
