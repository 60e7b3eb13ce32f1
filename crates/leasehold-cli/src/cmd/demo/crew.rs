//! The workers, as tasks or as processes: starts them, receives their events, and kills them.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use leasehold::{Client, Embedded};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::event::Event;
use super::stock::Stock;
use super::worker::{Finish, Worker};
use super::{LEASE, Plan};
use crate::failure::Failure;
use crate::server::{Server, URL_VARIABLE, access_flags};

/// The workers. Dropping the crew ends them.
pub(super) struct Crew {
    members: Vec<Member>,
    sender: mpsc::UnboundedSender<News>,
    news: mpsc::UnboundedReceiver<News>,
    start: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

struct Member {
    pid: Option<u32>,
    kill: Option<oneshot::Sender<()>>,
}

/// News about one worker.
pub(super) struct News {
    /// The number of the worker, from 0.
    pub(super) worker: usize,
    pub(super) what: What,
}

pub(super) enum What {
    Said(Event),
    /// The worker has ended, so it sends no more news.
    Ended(End),
}

/// The end of a worker.
pub(super) enum End {
    Finished,
    Killed,
    /// The worker ended without reporting why.
    Broken(String),
}

/// The channels of a worker's task: one sends its news, the other tells it when to start.
struct Line {
    worker: usize,
    news: mpsc::UnboundedSender<News>,
    start: watch::Receiver<bool>,
}

impl Line {
    fn send(&self, what: What) {
        let worker = self.worker;
        // This fails if the demo has ended, and this task is about to be aborted.
        let _ = self.news.send(News { worker, what });
    }

    async fn start(&mut self) {
        if self.start.wait_for(|start| *start).await.is_err() {
            // The crew was dropped, so there will be no start.
            std::future::pending().await
        }
    }
}

impl Crew {
    /// Creates workers in this process, with an embedded server. Each worker has a client of its
    /// own, as if it were a separate process.
    pub(super) fn of_tasks(plan: &Plan, stock: &Stock) -> Result<Self, Failure> {
        let keyspace = Embedded::new();
        let builder = Client::builder().lease(LEASE);
        let mut crew = Self::new();
        for _ in 0..plan.workers {
            let (line, killed) = crew.join(None);
            let client = builder.embedded(&keyspace)?;
            let worker = Worker {
                number: line.worker + 1,
                stock: stock.clone(),
                lock: plan.lock.as_ref().map(|name| client.lock(name)),
                pause: plan.pause,
                victim_at: plan.victim_at,
                limit: plan.items,
                killed: Some(killed),
            };
            crew.tasks.spawn(sell_in_task(worker, line));
        }
        Ok(crew)
    }

    /// Starts a process for each worker.
    pub(super) fn of_processes(
        plan: &Plan,
        stock: &Stock,
        server: &Server,
    ) -> Result<Self, Failure> {
        let mut crew = Self::new();
        for number in 1..=plan.workers {
            let child = spawn(plan, stock, server, number)
                .map_err(|error| Failure::io("can't start a worker", error))?;
            let (line, killed) = crew.join(child.id());
            crew.tasks.spawn(follow(child, line, killed));
        }
        Ok(crew)
    }

    fn new() -> Self {
        let (sender, news) = mpsc::unbounded_channel();
        Self {
            members: Vec::new(),
            sender,
            news,
            start: watch::Sender::new(false),
            tasks: JoinSet::new(),
        }
    }

    fn join(&mut self, pid: Option<u32>) -> (Line, oneshot::Receiver<()>) {
        let (kill, killed) = oneshot::channel();
        let line = Line {
            worker: self.members.len(),
            news: self.sender.clone(),
            start: self.start.subscribe(),
        };
        self.members.push(Member {
            pid,
            kill: Some(kill),
        });
        (line, killed)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the name of each worker in the picture.
    pub(super) fn labels(&self) -> Vec<String> {
        let label = |(index, member): (usize, &Member)| match member.pid {
            Some(pid) => format!("worker {} ({pid})", index + 1),
            None => format!("worker {}", index + 1),
        };
        self.members.iter().enumerate().map(label).collect()
    }

    /// Waits for the next news. If the future is dropped, no news is lost.
    pub(super) async fn news(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            // This is impossible, because `self` keeps a sender.
            None => std::future::pending().await,
        }
    }

    /// Lets all workers begin.
    pub(super) fn start(&self) {
        self.start.send_replace(true);
    }

    /// Kills a worker, which has no chance to clean up.
    pub(super) fn kill(&mut self, worker: usize) {
        if let Some(kill) = self.members[worker].kill.take() {
            // This fails if the worker has already ended.
            let _ = kill.send(());
        }
    }

    /// Kills the remaining workers, and waits until they have ended.
    pub(super) async fn stop(&mut self) {
        for worker in 0..self.members.len() {
            self.kill(worker);
        }
        if self.members.iter().all(|member| member.pid.is_none()) {
            self.tasks.abort_all();
        }
        let gone = async { while self.tasks.join_next().await.is_some() {} };
        // A process that does not end at once after a kill must not block the demo.
        let _ = tokio::time::timeout(STOP_LIMIT, gone).await;
    }
}

const STOP_LIMIT: Duration = Duration::from_secs(5);

async fn sell_in_task(worker: Worker, mut line: Line) {
    line.send(What::Said(Event::Ready));
    line.start().await;
    let report = |event| {
        line.send(What::Said(event));
        Ok(())
    };
    line.send(match worker.sell(report).await {
        Ok(Finish::Done) => What::Ended(End::Finished),
        Ok(Finish::Killed) => What::Ended(End::Killed),
        Err(failure) => What::Said(Event::Failed {
            exit: failure.exit(),
            message: failure.to_string(),
        }),
    });
}

fn spawn(plan: &Plan, stock: &Stock, server: &Server, number: usize) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("demo-worker")
        .args(access_flags())
        .arg("--stock")
        .arg(stock.dir())
        .args(["--number", &number.to_string()])
        .args([
            "--pause",
            &humantime::format_duration(plan.pause).to_string(),
        ])
        .args(["--limit", &plan.items.to_string()])
        .env(URL_VARIABLE, server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if let Some(name) = &plan.lock {
        command.args(["--lock", name]);
    }
    if let Some(left) = plan.victim_at {
        command.args(["--victim-at", &left.to_string()]);
    }
    command.spawn()
}

/// Forwards the events of a worker's process until it ends.
async fn follow(mut child: Child, mut line: Line, mut killed: oneshot::Receiver<()>) {
    let Some(stdout) = child.stdout.take() else {
        return line.send(What::Ended(End::Broken("has no stdout".into())));
    };
    let mut stdin = child.stdin.take();
    let mut lines = BufReader::new(stdout).lines();
    let mut doomed = false;
    loop {
        tokio::select! {
            text = lines.next_line() => {
                let Ok(Some(text)) = text else { break };
                match Event::parse(&text) {
                    Some(event) => line.send(What::Said(event)),
                    None => {
                        let what = format!("said something else: {text}");
                        line.send(What::Ended(End::Broken(what)));
                    }
                }
            }
            kill = &mut killed, if !doomed => {
                doomed = true;
                if kill.is_ok() {
                    // This fails if the process has just ended by itself.
                    let _ = child.start_kill();
                }
            }
            () = line.start(), if stdin.is_some() => {
                if let Some(mut stdin) = stdin.take() {
                    // This fails if the process has ended, which the next round notices.
                    let _ = stdin.write_all(b"go\n").await;
                }
            }
        }
    }
    // The process has closed its stdout, so no event follows.
    let end = match child.wait().await {
        Ok(status) if status.signal().is_some() => End::Killed,
        Ok(status) if status.success() => End::Finished,
        Ok(status) => End::Broken(format!("ended with {status}")),
        Err(error) => End::Broken(format!("can't be waited for: {error}")),
    };
    line.send(What::Ended(end));
}
