//! A server whose replies a test chooses.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
};

use tempfile::TempDir;

/// A server on its own Unix socket. It reads requests and answers each with the bytes that a test
/// chooses.
///
/// Each connection has its own thread and its own answerer. All connections are closed when the
/// server is dropped.
pub struct FakeServer {
    dir: TempDir,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    accepted: AtomicUsize,
    open: Mutex<Vec<Connection>>,
}

/// The server's reaction to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Sends these bytes as they are. No bytes means no answer.
    Send(Vec<u8>),
    /// Sends these bytes, and closes the connection.
    SendAndClose(Vec<u8>),
}

/// A request as it arrived.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The command and its arguments.
    pub parts: Vec<Vec<u8>>,
    /// The connection of the request. A test can keep it to send more later.
    pub connection: Connection,
}

impl Request {
    /// Returns the command in capital letters.
    pub fn command(&self) -> String {
        self.text(0).to_uppercase()
    }

    /// Returns a part as a string, or an empty string if there is no such part.
    pub fn text(&self, part: usize) -> String {
        let part = self.parts.get(part).map_or(&[][..], Vec::as_slice);
        String::from_utf8_lossy(part).into_owned()
    }
}

/// One client's connection.
#[derive(Clone)]
pub struct Connection {
    /// The number of the connection. The connections of a server are counted from 0.
    number: usize,
    stream: Arc<UnixStream>,
}

impl Connection {
    /// Returns the number of this connection. The connections of a server are counted from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Sends bytes that do not answer a request.
    ///
    /// # Errors
    ///
    /// Fails if the client has closed the connection.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&*self.stream).write_all(bytes)
    }

    /// Closes the connection.
    pub fn close(&self) {
        // The connection may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.number).finish()
    }
}

impl FakeServer {
    /// Starts a server. `answerer` returns the closure that answers the requests on one connection.
    ///
    /// # Panics
    ///
    /// Panics if the socket cannot be made.
    pub fn start<A>(answerer: impl Fn() -> A + Send + 'static) -> Self
    where
        A: FnMut(&Request) -> Action + Send + 'static,
    {
        let dir = tempfile::Builder::new()
            .prefix("leasehold-")
            .tempdir()
            .expect("a temporary folder can be made");
        let listener = UnixListener::bind(dir.path().join(SOCKET)).expect("the folder is new");
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.stopped.load(SeqCst) {
                    break;
                }
                if let Ok(stream) = stream {
                    accepting.serve(stream, answerer());
                }
            }
        });
        Self {
            dir,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Starts a server that answers requests with `special`, or like [`ordinary`] if `special`
    /// returns `None`.
    ///
    /// # Panics
    ///
    /// Panics if the socket cannot be made.
    pub fn with(special: impl Fn(&Request) -> Option<Action> + Send + Sync + 'static) -> Self {
        let special = Arc::new(special);
        Self::start(move || {
            let special = Arc::clone(&special);
            move |request: &Request| {
                special(request).unwrap_or_else(|| Action::Send(ordinary(request)))
            }
        })
    }

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Returns how many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(SeqCst)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, SeqCst);
        // Wakes the thread that accepts connections, which then sees `stopped`.
        let _ = UnixStream::connect(self.socket());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for connection in &*self.shared.open() {
            connection.close();
        }
    }
}

impl fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeServer")
            .field("url", &self.url())
            .finish()
    }
}

impl Shared {
    fn open(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(
        self: &Arc<Self>,
        stream: UnixStream,
        mut answer: impl FnMut(&Request) -> Action + Send + 'static,
    ) {
        let connection = Connection {
            number: self.accepted.fetch_add(1, SeqCst),
            stream: Arc::new(stream),
        };
        self.open().push(connection.clone());
        let shared = Arc::clone(self);
        thread::spawn(move || {
            // The conversation ends when either side closes the connection.
            let _ = converse(&connection, &mut answer);
            connection.close();
            shared
                .open()
                .retain(|other| other.number != connection.number);
        });
    }
}

fn converse(
    connection: &Connection,
    answer: &mut impl FnMut(&Request) -> Action,
) -> io::Result<()> {
    let mut requests = BufReader::new(&*connection.stream);
    loop {
        let request = Request {
            parts: read_request(&mut requests)?,
            connection: connection.clone(),
        };
        match answer(&request) {
            Action::Send(bytes) => connection.send(&bytes)?,
            Action::SendAndClose(bytes) => return connection.send(&bytes),
        }
    }
}

/// Reads a list of strings, which is how clients send every request.
fn read_request(stream: &mut impl BufRead) -> io::Result<Vec<Vec<u8>>> {
    let parts = read_length(stream, '*')?;
    (0..parts)
        .map(|_| {
            let length = read_length(stream, '$')?;
            let mut part = vec![0; length + 2];
            stream.read_exact(&mut part)?;
            part.truncate(length);
            Ok(part)
        })
        .collect()
}

fn read_length(stream: &mut impl BufRead, kind: char) -> io::Result<usize> {
    let mut line = String::new();
    stream.take(32).read_line(&mut line)?;
    line.trim_end()
        .strip_prefix(kind)
        .and_then(|length| length.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns the reply that a real server of version 7 gives to the commands that clients send
/// besides their scripts. A script gets an error.
pub fn ordinary(request: &Request) -> Vec<u8> {
    match &*request.command() {
        "CLIENT" | "AUTH" | "SELECT" => b"+OK\r\n".to_vec(),
        "PING" => b"+PONG\r\n".to_vec(),
        "TIME" => list(&[bulk(b"1700000000"), bulk(b"123456")]),
        "INFO" => bulk(b"# Server\r\nredis_version:7.0.15\r\n"),
        "SCRIPT" => bulk(b"0123456789012345678901234567890123456789"),
        "SUBSCRIBE" | "UNSUBSCRIBE" => confirmations(request),
        command => format!("-ERR unknown command '{command}'\r\n").into_bytes(),
    }
}

/// Returns one confirmation for each channel.
fn confirmations(request: &Request) -> Vec<u8> {
    let kind = request.command().to_lowercase();
    let confirm = |(number, channel): (usize, &Vec<u8>)| {
        let count = format!(":{}\r\n", number + 1).into_bytes();
        list(&[bulk(kind.as_bytes()), bulk(channel), count])
    };
    let channels = request.parts[1..].iter().enumerate();
    channels.flat_map(confirm).collect()
}

/// Returns a published message in the form in which a subscriber receives it in RESP2.
pub fn message(channel: &[u8], payload: &[u8]) -> Vec<u8> {
    list(&[bulk(b"message"), bulk(channel), bulk(payload)])
}

/// Returns a string in wire format.
pub fn bulk(text: &[u8]) -> Vec<u8> {
    let header = format!("${}\r\n", text.len());
    [header.as_bytes(), text, b"\r\n"].concat()
}

/// Returns a list in wire format. Its elements are already in wire format.
pub fn list(elements: &[Vec<u8>]) -> Vec<u8> {
    let header = format!("*{}\r\n", elements.len()).into_bytes();
    [header, elements.concat()].concat()
}

const SOCKET: &str = "fake.sock";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::{Reply, call};

    struct Stream(BufReader<UnixStream>);

    impl Read for Stream {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl BufRead for Stream {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            self.0.fill_buf()
        }

        fn consume(&mut self, amount: usize) {
            self.0.consume(amount);
        }
    }

    impl Write for Stream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.get_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.get_mut().flush()
        }
    }

    fn connect(server: &FakeServer) -> Stream {
        let stream = UnixStream::connect(server.socket()).expect("it listens");
        Stream(BufReader::new(stream))
    }

    #[test]
    fn requests_are_answered_as_the_test_says() {
        let server = FakeServer::with(|request| match &*request.command() {
            "GET" => Some(Action::Send(bulk(&request.parts[1]))),
            "QUIT" => Some(Action::SendAndClose(b"+bye\r\n".to_vec())),
            _ => None,
        });
        let mut stream = connect(&server);
        let mut run = |command: &[&str]| call(&mut stream, command);
        let text = |text: &str| Reply::Text(text.into());
        assert_eq!(run(&["get", "x"]).expect("open"), text("x"));
        assert_eq!(run(&["PING"]).expect("open"), text("PONG"));
        assert!(matches!(run(&["EVAL", "x"]), Ok(Reply::Error(_))));
        assert_eq!(run(&["QUIT"]).expect("open"), text("bye"));
        assert!(run(&["PING"]).is_err(), "closed");
        assert_eq!(server.connections(), 1);
    }

    #[test]
    fn a_connection_that_was_kept_can_say_more() {
        let kept = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&kept);
        let server = FakeServer::with(move |request| {
            *keep.lock().expect("no test panics with it") = Some(request.connection.clone());
            None
        });
        let mut stream = connect(&server);
        call(&mut stream, &["SUBSCRIBE", "a"]).expect("open");
        let connection = kept.lock().expect("no test panics with it").take();
        let connection = connection.expect("it has asked");
        let sent = message(b"a", b"0");
        assert_eq!(sent, b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n0\r\n");
        connection.send(&sent).expect("open");
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received).expect("open");
        assert_eq!(received, sent);
        drop(server);
        assert!(call(&mut stream, &["PING"]).is_err(), "closed with it");
    }
}
