//! The faults that affect the processes, their connections and their server.

use std::time::{Duration, Instant};

use leasehold_testkit::{Proxy, Reply, Strike};

use super::Arena;
use crate::server::scene::{ACQUIRE, LEASE, RELEASE, RENEW, SUBSCRIBE};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    Cut,
    CutCalls,
    CutMessages,
    Refuse,
    HoldRequests,
    HoldReplies,
    SwallowReplies,
    SwallowMessages,
    LoseOrDouble,
    CutOne,
    HoldOne,
    KillClients,
    PauseClients,
    FlushScripts,
    FreezeServer,
    StopProcess,
    KillProcess,
}

impl Trouble {
    /// The faults that do not affect the processes themselves.
    pub(super) const OUTSIDE: [Self; 15] = [
        Self::Cut,
        Self::CutCalls,
        Self::CutMessages,
        Self::Refuse,
        Self::HoldRequests,
        Self::HoldReplies,
        Self::SwallowReplies,
        Self::SwallowMessages,
        Self::LoseOrDouble,
        Self::CutOne,
        Self::HoldOne,
        Self::KillClients,
        Self::PauseClients,
        Self::FlushScripts,
        Self::FreezeServer,
    ];

    /// Faults of every kind, but fewer of the kinds that other tests cover.
    pub(super) const EVERYWHERE: [Self; 8] = [
        Self::StopProcess,
        Self::KillProcess,
        Self::StopProcess,
        Self::KillProcess,
        Self::Cut,
        Self::HoldReplies,
        Self::KillClients,
        Self::FreezeServer,
    ];
}

impl Arena {
    /// Causes the fault for a while. Returns whether it happened.
    pub(super) fn strike(&mut self, trouble: Trouble) -> bool {
        match trouble {
            Trouble::Cut => self.proxy().cut() > 0,
            Trouble::CutCalls => self.proxy().cut_calls() > 0,
            Trouble::CutMessages => self.proxy().cut_messages() > 0,
            Trouble::Refuse => {
                let proxy = self.victim();
                let seen = self.processes[proxy].proxy.connections();
                self.for_a_while(proxy, |proxy, on| {
                    proxy.refuse(on);
                    if on {
                        proxy.cut();
                    }
                });
                self.processes[proxy].proxy.connections() > seen
            }
            Trouble::HoldRequests => self.switch(Proxy::hold_requests),
            Trouble::HoldReplies => self.switch(Proxy::hold_replies),
            Trouble::SwallowReplies => self.swallow(Proxy::swallow_replies),
            Trouble::SwallowMessages => self.swallow(Proxy::swallow_messages),
            Trouble::LoseOrDouble => {
                self.strike_one(&[Strike::LoseRequest, Strike::LoseReply, Strike::Double])
            }
            Trouble::CutOne => self.strike_one(&[
                Strike::CutBefore,
                Strike::CutInRequest,
                Strike::CutAfter,
                Strike::CutInReply,
                Strike::CutBehindReply,
            ]),
            Trouble::HoldOne => self.strike_one(&[Strike::HoldRequest, Strike::HoldReply]),
            Trouble::StopProcess => {
                let victim = self.victim();
                self.processes[victim].child.pause();
                std::thread::sleep(self.span());
                self.processes[victim].child.resume();
                true
            }
            Trouble::KillProcess => {
                self.kill_process();
                true
            }
            at_the_server => self.strike_server(at_the_server),
        }
    }

    fn strike_server(&mut self, trouble: Trouble) -> bool {
        match trouble {
            Trouble::KillClients => {
                let kind = self.one_of(&["normal", "pubsub"]);
                let killed = self.server.command(&["CLIENT", "KILL", "TYPE", kind]);
                killed.unwrap().as_int().unwrap() > 0
            }
            Trouble::PauseClients => {
                let span = self.span();
                let (ms, mode) = (span.as_millis().to_string(), self.one_of(&["WRITE", "ALL"]));
                let paused = self.server.command(&["CLIENT", "PAUSE", &ms, mode]);
                std::thread::sleep(span);
                paused.unwrap() == Reply::Text("OK".into())
            }
            Trouble::FlushScripts => {
                let flushed = self.server.command(&["SCRIPT", "FLUSH"]);
                flushed.unwrap() == Reply::Text("OK".into())
            }
            Trouble::FreezeServer => {
                self.server.pause().unwrap();
                std::thread::sleep(self.span());
                self.server.resume().is_ok()
            }
            other => unreachable!("{other:?} is no trouble of the server"),
        }
    }

    /// Returns the length of a fault: short for most connections, too long for some leases.
    fn span(&mut self) -> Duration {
        LEASE.mul_f64(self.random.f64() * self.random.f64() * 2.5)
    }

    fn victim(&mut self) -> usize {
        self.random.usize(..self.processes.len())
    }

    fn proxy(&mut self) -> &Proxy {
        let victim = self.victim();
        &self.processes[victim].proxy
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.usize(..all.len())]
    }

    fn for_a_while(&mut self, victim: usize, switch: impl Fn(&Proxy, bool)) {
        let span = self.span();
        let proxy = &self.processes[victim].proxy;
        switch(proxy, true);
        std::thread::sleep(span);
        switch(proxy, false);
    }

    fn switch(&mut self, switch: impl Fn(&Proxy, bool)) -> bool {
        let victim = self.victim();
        self.for_a_while(victim, switch);
        true
    }

    fn swallow(&mut self, switch: impl Fn(&Proxy, bool)) -> bool {
        let proxy = self.proxy();
        let seen = proxy.swallowed();
        switch(proxy, true);
        let swallowed = comes_to_it(|| proxy.swallowed() > seen);
        switch(proxy, false);
        swallowed
    }

    fn strike_one(&mut self, strikes: &[Strike]) -> bool {
        let strike = self.one_of(strikes);
        let needle = self.one_of(&[ACQUIRE, RELEASE, RENEW, SUBSCRIBE]);
        let span = self.span();
        let proxy = self.proxy();
        let fault = proxy.strike_next(needle, strike);
        let fired = comes_to_it(|| fault.fired());
        if matches!(strike, Strike::HoldRequest | Strike::HoldReply) {
            std::thread::sleep(span);
        }
        proxy.disarm();
        proxy.let_go(&fault);
        fired
    }
}

/// Waits until `happened`. The wait has a limit, because it is not certain that a process sends the
/// request for which the fault waits.
fn comes_to_it(happened: impl Fn() -> bool) -> bool {
    let end = Instant::now() + LEASE;
    while !happened() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    happened()
}
