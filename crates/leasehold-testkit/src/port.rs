//! A port that belongs to one test server, even while the server is down.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use socket2::{Domain, Socket, Type};

/// A port of the loopback interface on which a server can listen, and the port for a cluster's bus.
///
/// A bound socket that does not listen keeps each port. The kernel refuses connections to it, does
/// not choose it for another socket, and lets a server that sets `SO_REUSEADDR` listen on it. Redis
/// and Valkey set this option. Without these sockets, a connection of another test could take the
/// port of a killed server, and the server's restart would fail.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _kept: [Socket; 2],
}

impl Port {
    /// Takes a free port.
    ///
    /// # Errors
    ///
    /// Fails if none is free.
    pub(crate) fn take() -> io::Result<Self> {
        for _ in 0..TRIES {
            let server = bound(0)?;
            let number = port_of(&server)?;
            let Some(bus) = number.checked_add(BUS_OFFSET) else {
                continue;
            };
            // Another server may have the second port.
            if let Ok(bus) = bound(bus) {
                return Ok(Self {
                    number,
                    _kept: [server, bus],
                });
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Binds a socket to this port, or to a free port if it is 0.
fn bound(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    // Set only now: a socket with this option could be bound to a port that another test keeps.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

fn port_of(socket: &Socket) -> io::Result<u16> {
    let address = socket.local_addr()?.as_socket();
    Ok(address.map_or(0, |address| address.port()))
}

/// The distance between a server's port and the port on which it talks to its cluster.
const BUS_OFFSET: u16 = 10_000;
/// The number of ports to look at. About two thirds of the ports that the kernel chooses are low
/// enough to have a second port.
const TRIES: usize = 100;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn kept_port_is_open_to_a_server_only() {
        let port = Port::take().expect("a port is free");
        for number in [port.number(), port.number() + BUS_OFFSET] {
            assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, number)).is_err());
            assert!(bound(number).is_err(), "{number} was taken twice");
            // The standard library sets `SO_REUSEADDR`, as Redis does.
            drop(TcpListener::bind((Ipv4Addr::LOCALHOST, number)).expect("the port is free"));
        }
    }
}
