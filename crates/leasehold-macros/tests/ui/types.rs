#![allow(unused_variables)]

use leasehold::{Client, blocking, locked};

struct NoFrom;

struct NoBusy;

impl From<leasehold::Error> for NoBusy {
    fn from(_: leasehold::Error) -> Self {
        Self
    }
}

#[locked("x", client = client)]
async fn no_conversion_of_errors(client: &Client) -> Result<(), NoFrom> {
    Ok(())
}

#[locked("x", client = client, wait = "5s")]
async fn no_conversion_of_busy(client: &Client) -> Result<(), NoBusy> {
    Ok(())
}

#[locked("x:{idd}", client = client)]
async fn unknown_argument(client: &Client, id: u64) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x:{id", client = client)]
async fn unclosed_brace(client: &Client, id: u64) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client)]
fn async_client_in_a_blocking_function(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client)]
async fn blocking_client_in_an_async_function(client: &blocking::Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client)]
async fn not_a_result(client: &Client) -> u32 {
    5
}

fn main() {}
