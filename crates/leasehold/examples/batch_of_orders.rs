//! Transfers between accounts, each under the locks of both accounts. A transfer gets both locks or
//! none. There is no dead-lock, although each transfer names the accounts in its own order.
//!
//! ```console
//! $ cargo run -p leasehold --example batch_of_orders                          # in process
//! $ cargo run -p leasehold --example batch_of_orders -- redis://127.0.0.1
//! ```
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Client, MultiLock, Result};

/// The orders: from, to, and amount.
const ORDERS: [(&str, &str, i64); 6] = [
    ("ann", "bob", 10),
    ("bob", "ann", 5),
    ("bob", "cid", 20),
    ("cid", "ann", 15),
    ("ann", "cid", 7),
    ("cid", "bob", 3),
];

/// The accounts, which the locks protect: they are read, changed after a pause, and written back.
type Accounts = Arc<Mutex<BTreeMap<&'static str, i64>>>;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    let client = Client::connect(&url).await?;
    let accounts = Accounts::default();
    let transfers: Vec<_> = ORDERS
        .iter()
        .map(|order| tokio::spawn(transfer(client.clone(), Arc::clone(&accounts), *order)))
        .collect();
    for transfer in transfers {
        transfer.await.expect("no transfer panics")?;
    }
    let accounts = accounts.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{accounts:?}: {} in all", accounts.values().sum::<i64>());
    Ok(())
}

async fn transfer(
    client: Client,
    accounts: Accounts,
    (from, to, amount): (&'static str, &'static str, i64),
) -> Result<()> {
    let both = MultiLock::new([from, to].map(|name| client.lock(format!("account:{name}"))))?;
    // The time limit applies to both locks together.
    let Some(guard) = both.try_acquire_for(Duration::from_secs(30)).await? else {
        println!("{from} -> {to}: somebody has been busy for half a minute");
        return Ok(());
    };
    let move_money = async {
        let (before_from, before_to) = (balance(&accounts, from), balance(&accounts, to));
        tokio::time::sleep(Duration::from_millis(20)).await;
        set_balance(&accounts, from, before_from - amount);
        set_balance(&accounts, to, before_to + amount);
    };
    // The transfer is dropped if one of the locks is lost, because then the whole is lost.
    guard.protect(move_money).await?;
    println!("{from} -> {to}: {amount}");
    guard.release().await
}

fn balance(accounts: &Accounts, name: &'static str) -> i64 {
    let accounts = accounts.lock().unwrap_or_else(PoisonError::into_inner);
    accounts.get(name).copied().unwrap_or_default()
}

fn set_balance(accounts: &Accounts, name: &'static str, balance: i64) {
    let mut accounts = accounts.lock().unwrap_or_else(PoisonError::into_inner);
    accounts.insert(name, balance);
}
