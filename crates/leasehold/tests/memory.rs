//! Names that were used once leave nothing with the client, counted in bytes. These tests have a
//! binary of their own, because the allocator counts for the whole process.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]
#![cfg(feature = "redis")]

use std::alloc::System;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::inspect::Activity;
use leasehold::{Client, MultiLock};
use leasehold_testkit::RedisServer;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::task::JoinSet;

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The lock that keeps two tests from running at a time: each would count the other's memory.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Number of names that are used before the memory is counted, and number of names that are used
/// then.
const BEFORE: usize = 4096;
const NAMES: usize = 20_000;
/// Number of names in use at a time.
const AT_ONCE: usize = 200;
/// Bytes that may be kept. A client that kept each name would keep more.
const MOST: usize = NAMES * 50;
const SHORT: Duration = Duration::from_millis(20);

struct Place {
    /// The server, which ends last.
    server: RedisServer,
    client: Client,
    rival: Client,
}

async fn new_place() -> Place {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let rival = Client::connect(&server.url()).await.unwrap();
    Place {
        server,
        client,
        rival,
    }
}

impl Place {
    async fn settled(&self) {
        for client in [&self.client, &self.rival] {
            while client.activity() != Activity::default() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        // This leaves time for the server's last replies, and for the connection's tasks to drop
        // their memory.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Uses many names, `AT_ONCE` at a time. Returns how many more bytes are in use afterwards.
    async fn kept(&self, use_name: impl AsyncFn(&Place, String)) -> usize {
        let mut region = None;
        for (part, names) in [("a", BEFORE), ("b", NAMES)] {
            self.settled().await;
            region = Some(Region::new(COUNTED));
            for first in (0..names).step_by(AT_ONCE) {
                let names = (first..first + AT_ONCE).map(|n| format!("{part}:{n}"));
                join_all(names.map(|name| use_name(self, name))).await;
            }
        }
        self.settled().await;
        let change = region.unwrap().change();
        change
            .bytes_allocated
            .saturating_sub(change.bytes_deallocated)
    }
}

macro_rules! leaves_nothing {
    ($($name:ident: $use_name:expr;)+) => {
        /// The uses run one after the other, so the memory that each keeps is counted by itself.
        #[tokio::test]
        async fn unused_names_keep_no_memory() {
            let _alone = ALONE.lock().await;
            let mut too_much = Vec::new();
            $(
                let place = new_place().await;
                let kept = place.kept($use_name).await;
                println!("{}: {kept} bytes", stringify!($name));
                if kept > MOST {
                    too_much.push(format!("{} keeps {kept} bytes", stringify!($name)));
                }
                drop(place);
            )+
            assert!(too_much.is_empty(), "{too_much:?}");
        }
    };
}

leaves_nothing! {
    lock: async |place: &Place, name: String| {
        place.client.lock(&name).acquire().await.unwrap().release().await.unwrap();
    };
    dropped: async |place: &Place, name: String| {
        drop(place.client.lock(&name).acquire().await.unwrap());
    };
    owned: async |place: &Place, name: String| {
        let lock = place.client.lock(&name).owned_by(&leasehold::Owner::new());
        let guard = lock.acquire().await.unwrap();
        lock.acquire().await.unwrap().release().await.unwrap();
        guard.release().await.unwrap();
    };
    fair: async |place: &Place, name: String| {
        place.client.fair_lock(&name).acquire().await.unwrap().release().await.unwrap();
    };
    fenced: async |place: &Place, name: String| {
        place.client.fenced_lock(&name).acquire().await.unwrap().release().await.unwrap();
    };
    group: async |place: &Place, name: String| {
        let lock = place.client.group_lock(&name, ["a", "b"]);
        lock.acquire().await.unwrap().release().await.unwrap();
    };
    rw: async |place: &Place, name: String| {
        let lock = place.client.rw_lock(&name);
        lock.read().await.unwrap().release().await.unwrap();
        lock.write().await.unwrap().release().await.unwrap();
    };
    multi: async |place: &Place, name: String| {
        let lock = |side| place.client.lock(format!("{name}:{side}"));
        let both = MultiLock::new([lock(1), lock(2)]).unwrap();
        both.acquire().await.unwrap().release().await.unwrap();
    };
    waited: async |place: &Place, name: String| {
        let guard = place.rival.lock(&name).acquire().await.unwrap();
        // The wait may end in an error too, if the reply took longer.
        let waited = place.client.lock(&name).try_acquire_for(SHORT).await;
        assert!(!matches!(waited, Ok(Some(_))));
        guard.release().await.unwrap();
    };
    semaphore: async |place: &Place, name: String| {
        let semaphore = place.client.semaphore(&name);
        semaphore.try_set_permits(1).await.unwrap();
        semaphore.acquire().await.unwrap().release().await.unwrap();
    };
    semaphore_waited: async |place: &Place, name: String| {
        let semaphore = place.client.semaphore(&name);
        semaphore.try_set_permits(1).await.unwrap();
        let permit = semaphore.acquire().await.unwrap();
        let waited = semaphore.try_acquire_for(SHORT).await;
        assert!(!matches!(waited, Ok(Some(_))));
        permit.release().await.unwrap();
    };
    expirable: async |place: &Place, name: String| {
        let semaphore = place.client.expirable_semaphore(&name);
        semaphore.try_set_permits(1).await.unwrap();
        semaphore.acquire().await.unwrap().release().await.unwrap();
    };
    latch: async |place: &Place, name: String| {
        let latch = place.client.count_down_latch(&name);
        latch.try_set_count(1).await.unwrap();
        latch.count_down().await.unwrap();
        latch.wait().await.unwrap();
    };
}

/// After a burst of names that are all in use at once, no allocation remains that only a burst
/// needs.
#[tokio::test]
async fn a_burst_of_names_leaves_no_room_behind() {
    let _alone = ALONE.lock().await;
    let place = new_place().await;
    let owner = leasehold::Owner::new();
    let burst = async |prefix: &str, names: usize| {
        let names: Vec<_> = (0..names).map(|n| format!("{prefix}:{n}")).collect();
        let locks = names.iter().map(|name| place.client.lock(name));
        let locks: Vec<_> = locks.map(|lock| lock.owned_by(&owner)).collect();
        let guards = join_all(locks.iter().map(|lock| lock.acquire())).await;
        let mut waiters = JoinSet::new();
        for name in &names {
            let lock = place.rival.lock(name);
            waiters.spawn(async move { lock.acquire().await.map(drop) });
        }
        while place.rival.activity().channels < names.len() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        waiters.shutdown().await;
        for guard in guards {
            guard.unwrap().release().await.unwrap();
        }
    };
    burst("few", 100).await;
    place.settled().await;
    let region = Region::new(COUNTED);
    burst("many", NAMES / 2).await;
    place.settled().await;
    let change = region.change();
    let kept = change
        .bytes_allocated
        .saturating_sub(change.bytes_deallocated);
    println!("burst: {kept} bytes");
    assert!(kept <= MOST, "{kept} bytes are kept");
    drop(place.server);
}

/// A listing of many keys, of which some are locks, keeps only the names that it is reading.
#[tokio::test]
async fn a_listing_keeps_no_names() {
    const KEYS: usize = 200_000;
    const LOCKS: usize = 20_000;
    let _alone = ALONE.lock().await;
    let place = new_place().await;
    let fill = "for n = 1, ARGV[1] do redis.call('SET', 'other:' .. n, 'a text') end
                for n = 1, ARGV[2] do redis.call('HSET', 'job:' .. n, ARGV[3], 1) end";
    let hold = "01234567-89ab-cdef-0123-456789abcdef:1";
    let (keys, locks) = (KEYS.to_string(), LOCKS.to_string());
    let filled = place
        .server
        .command(&["EVAL", fill, "0", &keys, &locks, hold]);
    filled.unwrap();
    let region = Region::new(COUNTED);
    let (mut found, mut most) = (0, 0);
    let mut names = place.client.list("job:*");
    while let Some(listed) = names.next().await {
        let listed = listed.unwrap();
        assert!(listed.name.starts_with("job:"), "{listed:?}");
        found += 1;
        let change = region.change();
        let kept = change
            .bytes_allocated
            .saturating_sub(change.bytes_deallocated);
        most = most.max(kept);
    }
    let (looked_at, total) = names.progress();
    println!("listing: {most} bytes at most, {looked_at} of {total} keys");
    // A listing may find a key twice.
    assert!((LOCKS..LOCKS * 2).contains(&found), "{found}");
    assert!(looked_at >= (KEYS + LOCKS) as u64, "{looked_at} of {total}");
    // All of the names would take a megabyte.
    assert!(most <= 512 * 1024, "{most} bytes");
    drop(place.server);
}

/// If each member were compared with every other member, the cost of a member would grow with their
/// number.
#[tokio::test]
async fn members_of_a_multi_lock_cost_the_same_however_many_they_are() {
    let _alone = ALONE.lock().await;
    let place = new_place().await;
    let blocks_a_member = async |members: usize| {
        let names = (0..members).map(|number| place.client.lock(format!("{members}:{number}")));
        let lock = MultiLock::new(names).unwrap();
        // The first acquire makes tables that are never freed, and learns which server it has.
        lock.acquire().await.unwrap().release().await.unwrap();
        place.settled().await;
        let region = Region::new(COUNTED);
        lock.acquire().await.unwrap().release().await.unwrap();
        region.change().allocations / members
    };
    let (few, many) = (blocks_a_member(64).await, blocks_a_member(1024).await);
    assert!(
        many < 2 * few,
        "{few} blocks a member of 64, {many} of 1024"
    );
}
