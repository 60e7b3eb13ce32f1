#![allow(unused_variables)]

use leasehold::{Client, locked};

#[locked]
async fn no_arguments(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x")]
async fn no_client(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("", client = client)]
async fn no_name(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked(NAME, client = client)]
async fn not_a_template(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client, waits = "5s")]
async fn unknown_key(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client, client = client)]
async fn twice(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client, wait = "5")]
async fn no_unit(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client, wait = 5)]
async fn no_quotation_marks(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client, kind = "shared")]
async fn unknown_kind(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client, busy = Ok(()))]
async fn busy_without_wait(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client, lease = "5s", fixed_lease = "5s")]
async fn two_leases(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

#[locked("x", client = client, fixed_lease = "5s", progress_within = "5s")]
async fn progress_without_renewals(client: &Client) -> leasehold::Result<()> {
    Ok(())
}

fn main() {
    // The functions exist, so the errors cause no others.
    drop(no_client(&Client::embedded()));
}
