//! The connection of one client, handled frame by frame.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use super::{
    Shared, State,
    fault::{Armed, Fault, Strike},
};
use crate::frames::{Frame, Splitter};

/// A client's connection, and the matching connection to the server.
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    pub(super) closed: AtomicBool,
    flow: Mutex<Flow>,
}

/// The state of the conversation on a link.
#[derive(Default)]
struct Flow {
    /// Whether the client has subscribed, so that messages can arrive.
    subscribed: bool,
    /// The fates of the replies that have not arrived yet, in the order of the replies.
    replies: VecDeque<Fate>,
    requests_vanish: bool,
    replies_vanish: bool,
}

enum Fate {
    Passes,
    IsDropped,
    Meets(Strike, Fault),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

impl Link {
    pub(super) fn has_subscribed(&self) -> bool {
        self.flow().subscribed
    }

    fn flow(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the fates of the replies to `request`. `first` is the fate of the first reply.
    fn expect(&self, request: &Frame, first: Fate) {
        let mut flow = self.flow();
        flow.subscribed |= request.subscribes();
        flow.replies.push_back(first);
        for _ in 1..request.replies() {
            flow.replies.push_back(Fate::Passes);
        }
    }
}

impl Shared {
    /// Serves a new client until one side closes its connection.
    pub(super) fn serve(self: &Arc<Self>, client: TcpStream, server: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let link = Arc::new(Link {
            client,
            server,
            closed: AtomicBool::new(false),
            flow: Mutex::default(),
        });
        self.state().links.push(Arc::clone(&link));
        for direction in [Direction::Requests, Direction::Replies] {
            let (shared, link) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || {
                // Any error ends the link, and both sides notice that.
                let _ = shared.forward(&link, direction);
                shared.close(&link);
            });
        }
        Ok(())
    }

    fn forward(&self, link: &Link, direction: Direction) -> io::Result<()> {
        let mut from = match direction {
            Direction::Requests => &link.client,
            Direction::Replies => &link.server,
        };
        let mut splitter = Splitter::default();
        let mut buffer = vec![0; CHUNK];
        loop {
            let length = match from.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for frame in splitter.split(&buffer[..length]) {
                self.wait_while(link, |state| match direction {
                    Direction::Requests => state.hold_requests,
                    Direction::Replies => state.hold_replies,
                })?;
                match direction {
                    Direction::Requests => self.request(link, &frame)?,
                    Direction::Replies => self.reply(link, &frame)?,
                }
            }
        }
    }

    fn request(&self, link: &Link, frame: &Frame) -> io::Result<()> {
        if link.flow().requests_vanish {
            return Ok(());
        }
        let mut server = &link.server;
        let Some(Armed { strike, fault, .. }) = self.take_armed(frame) else {
            // The reply is recorded before the request is sent, because the server may answer at
            // once.
            link.expect(frame, Fate::Passes);
            return server.write_all(&frame.0);
        };
        fault.hits(frame);
        self.strike_request(link, frame, strike, fault)
    }

    fn strike_request(
        &self,
        link: &Link,
        frame: &Frame,
        strike: Strike,
        fault: Fault,
    ) -> io::Result<()> {
        let mut server = &link.server;
        match strike {
            Strike::CutBefore => Err(self.cut_by(&fault, link)),
            Strike::CutInRequest => {
                server.write_all(&frame.0[..frame.0.len() / 2])?;
                Err(self.cut_by(&fault, link))
            }
            Strike::LoseRequest => {
                link.flow().requests_vanish = true;
                self.fire(&fault);
                Ok(())
            }
            Strike::Double => {
                link.expect(frame, Fate::Passes);
                for _ in 0..frame.replies() {
                    link.flow().replies.push_back(Fate::IsDropped);
                }
                server.write_all(&[&frame.0[..], &frame.0].concat())?;
                self.fire(&fault);
                Ok(())
            }
            Strike::HoldRequest => {
                self.hold_for(&fault, link)?;
                link.expect(frame, Fate::Passes);
                server.write_all(&frame.0)
            }
            _ => {
                link.expect(frame, Fate::Meets(strike, fault));
                server.write_all(&frame.0)
            }
        }
    }

    fn reply(&self, link: &Link, frame: &Frame) -> io::Result<()> {
        let is_message = frame.is_message(link.has_subscribed());
        if self.swallows(is_message) {
            // The client would take later replies for the lost one.
            link.flow().replies_vanish |= !is_message;
            return Ok(());
        }
        let mut client = &link.client;
        if is_message {
            return client.write_all(&frame.0);
        }
        let fate = link.flow().replies.pop_front();
        if link.flow().replies_vanish {
            return Ok(());
        }
        match fate {
            // A reply without a request, such as the refusal of a connection, passes too.
            Some(Fate::Passes) | None => client.write_all(&frame.0),
            Some(Fate::IsDropped) => Ok(()),
            Some(Fate::Meets(strike, fault)) => self.strike_reply(link, frame, strike, &fault),
        }
    }

    fn strike_reply(
        &self,
        link: &Link,
        frame: &Frame,
        strike: Strike,
        fault: &Fault,
    ) -> io::Result<()> {
        let mut client = &link.client;
        match strike {
            Strike::LoseReply => {
                link.flow().replies_vanish = true;
                self.fire(fault);
                Ok(())
            }
            Strike::HoldReply => {
                self.hold_for(fault, link)?;
                client.write_all(&frame.0)
            }
            Strike::CutInReply => {
                client.write_all(&frame.0[..frame.0.len() / 2])?;
                Err(self.cut_by(fault, link))
            }
            Strike::CutBehindReply => {
                client.write_all(&frame.0)?;
                Err(self.cut_by(fault, link))
            }
            _ => Err(self.cut_by(fault, link)),
        }
    }

    /// Removes and returns the fault that waits for this request, if there is one.
    fn take_armed(&self, frame: &Frame) -> Option<Armed> {
        let armed = &mut self.state().armed;
        let index = armed.iter_mut().position(|armed| armed.is_for(frame))?;
        Some(armed.remove(index))
    }

    fn swallows(&self, is_message: bool) -> bool {
        let state = self.state();
        let swallows = state.swallow_all || is_message && state.swallow_messages;
        drop(state);
        if swallows {
            self.swallowed.fetch_add(1, SeqCst);
        }
        swallows
    }

    fn fire(&self, fault: &Fault) {
        fault.fire();
        self.faults.fetch_add(1, SeqCst);
    }

    /// Closes the link, and returns the error that ends its threads.
    fn cut_by(&self, fault: &Fault, link: &Link) -> io::Error {
        // The link is closed first, because a test that notices the fault relies on the connection
        // being closed.
        self.close(link);
        self.fire(fault);
        io::ErrorKind::ConnectionAborted.into()
    }

    fn hold_for(&self, fault: &Fault, link: &Link) -> io::Result<()> {
        self.fire(fault);
        self.wait_while(link, |_| !fault.is_let_go())
    }

    fn wait_while(&self, link: &Link, held: impl Fn(&State) -> bool) -> io::Result<()> {
        let held = |state: &mut State| held(state) && !link.closed.load(SeqCst);
        let state = self.changed.wait_while(self.state(), held);
        drop(state.unwrap_or_else(PoisonError::into_inner));
        // If bytes were held back when the link was cut, they are lost, even if a socket is still
        // open.
        if link.closed.load(SeqCst) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    pub(super) fn close(&self, link: &Link) {
        let mut state = self.state();
        // The lock is held here. Otherwise a thread that is about to wait would miss the change.
        link.closed.store(true, SeqCst);
        state.links.retain(|other| !std::ptr::eq(&**other, link));
        drop(state);
        self.changed.notify_all();
        // This fails if the peer has already closed the connection, which does no harm.
        let _ = link.client.shutdown(Shutdown::Both);
        let _ = link.server.shutdown(Shutdown::Both);
    }
}

const CHUNK: usize = 64 * 1024;
