#![allow(unused_variables)]

use leasehold::{Client, blocking, locked};

#[locked("x", client = client, protect)]
fn blocking_with_protect(client: &blocking::Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client)]
async fn no_result(client: &Client) {}

#[locked("x", client = client)]
const fn constant(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client)]
fn returns_a_future(client: &Client) -> impl Future<Output = leasehold::Result<()>> {
    async { Ok(()) }
}

#[locked("x", client = client)]
struct NotAFunction;

trait Service {
    #[locked("x", client = self.client)]
    async fn no_body(&self) -> leasehold::Result<()>;
}

fn main() {}
