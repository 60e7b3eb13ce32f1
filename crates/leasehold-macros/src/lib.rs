//! The attribute [`locked`] for the crate `leasehold`. Use it through that crate's feature
//! `macros`.

#![forbid(unsafe_code)]

mod arguments;
mod duration;
mod expand;
mod function;

use proc_macro::TokenStream;

use arguments::Arguments;
use function::Function;

/// Runs a function under a lock. The lock is acquired before the body, and released after it.
///
/// ```
/// use leasehold::{Client, locked};
///
/// struct Invoices {
///     locks: Client,
/// }
///
/// impl Invoices {
///     #[locked("invoice:{id}", client = self.locks)]
///     async fn pay(&self, id: u64) -> leasehold::Result<u64> {
///         Ok(id)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let invoices = Invoices { locks: Client::embedded() };
/// assert_eq!(invoices.pay(7).await?, 7);
/// # Ok(())
/// # }
/// ```
///
/// The first argument is the name of the lock, as a format string. The string can use the arguments
/// of the function (`"invoice:{id}"`). If it has empty braces, their values follow the string
/// (`"invoice:{}", invoice.id`). The compiler checks the string and the values like the arguments
/// of `format!`.
///
/// | key | value | default |
/// |---|---|---|
/// | `client` | the client, by value or by reference. The expression may use the arguments and `self` | required |
/// | `wait` | how long to wait for the lock. With `"0s"` or `Duration::ZERO`, the function tries once and does not wait | waits without a limit |
/// | `busy` | what the function returns if another client still holds the lock after `wait` | `Err(Busy.into())` |
/// | `kind` | `"plain"`, `"fair"`, `"fenced"`, `"read"` or `"write"` | `"plain"` |
/// | `lease` | the lease of the hold, which is renewed | the client's lease |
/// | `fixed_lease` | the lease of a hold that is not renewed | the hold is renewed |
/// | `max_hold` | how long the hold may last in total | no limit |
/// | `progress_within` | the time within which the body must report progress with `lock_guard.progress()` | none |
/// | `owner` | the `Owner` of the hold, which can re-enter it | none; for a blocking function, the thread |
/// | `protect` | whether a loss of the lock stops the body | `true`; for a blocking function, `false` |
/// | `crate` | the path of the crate `leasehold` | `::leasehold` |
///
/// A duration is a string such as `"500ms"`, `"5s"` or `"1m30s"`, or any expression of the type
/// `Duration`.
///
/// The function must return a `Result` whose error type implements `From<leasehold::Error>`. If the
/// attribute has a `wait` and no `busy`, the error type must also implement
/// `From<leasehold::Busy>`. `anyhow::Error` and `Box<dyn Error>` implement both.
///
/// Inside the body, `lock_guard` is a reference to the guard, for example for
/// `lock_guard.fencing_token()`.
///
/// # What happens
///
/// - If the lock is lost while the body runs, the body is dropped at its current `.await`, and the
///   function returns the loss as an error. With `protect = false`, the body continues.
/// - If the body returns `Ok` and the release finds that the lock was lost, the function returns
///   the loss. Another holder may have worked at the same time.
/// - If the body returns `Err`, the function releases the lock and returns this error.
/// - `return` and `?` in the body end the body, so the lock is released.
/// - If the body panics, the lock is released.
///
/// A function that is not `async` needs a client from `leasehold::blocking`. A thread can't be
/// stopped, so the body always runs to its end.
///
/// An async function has no owner by default. If it calls itself and uses the same lock name, it
/// waits for itself. To avoid this, pass an `owner`.
///
/// The attribute works on methods, on default methods of traits, and below `#[async_trait]`.
///
/// # Transactions
///
/// Begin and commit a transaction inside the body. Otherwise, the next holder may not see the
/// changes of this holder. If an attribute begins the transaction, write `#[locked]` below it.
/// Attributes expand from top to bottom, so the lower one wraps the code that the upper one
/// produced, and the lock is released after the commit.
///
/// # Cancel safety
///
/// Dropping the future of an async function drops the body and releases the lock in the background.
///
/// # Examples
///
/// A job that is skipped while another process runs it:
///
/// ```
/// use leasehold::{Client, locked};
///
/// #[locked("report", client = client, wait = "0s", busy = Ok(false))]
/// async fn report(client: &Client) -> leasehold::Result<bool> {
///     Ok(true)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = Client::embedded();
/// assert!(report(&client).await?);
/// let held = client.lock("report").acquire().await?;
/// assert!(!report(&client).await?);
/// # held.release().await
/// # }
/// ```
///
/// A blocking function:
///
/// ```
/// use leasehold::{Busy, blocking, locked};
///
/// #[locked("stock:{}", item.id, client = client, wait = "2s")]
/// fn count(client: &blocking::Client, item: &Item) -> Result<u32, Box<dyn std::error::Error>> {
///     Ok(item.id)
/// }
///
/// struct Item {
///     id: u32,
/// }
///
/// let client = blocking::Client::embedded();
/// assert_eq!(count(&client, &Item { id: 3 }).unwrap(), 3);
/// ```
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let function = match syn::parse::<Function>(item.clone()) {
        Ok(function) => function,
        Err(error) => return with_item(&error, item),
    };
    let expanded = syn::parse::<Arguments>(arguments)
        .and_then(|arguments| expand::locked(&arguments, &function));
    match expanded {
        Ok(expanded) => expanded.into(),
        Err(error) => with_item(&error, item),
    }
}

/// Returns the error, and the unchanged item. If the item were missing, each use of the function
/// would cause a further error.
fn with_item(error: &syn::Error, item: TokenStream) -> TokenStream {
    let mut tokens = TokenStream::from(error.to_compile_error());
    tokens.extend(item);
    tokens
}
