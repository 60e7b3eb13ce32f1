//! One command is denied at a time: an action that needs this command returns an error and leaves
//! nothing half done.

use std::time::Duration;

use leasehold::Client;
use leasehold::inspect::Ttl;
use leasehold_testkit::{RedisServer, Reply};

use crate::support::eventually;

/// The commands that the steps run in addition to the commands of locks.
const COMMANDS: [&str; 14] = [
    "get",
    "set",
    "incrby",
    "decrby",
    "del",
    "time",
    "pttl",
    "publish",
    "zadd",
    "zrem",
    "zscore",
    "zcard",
    "zcount",
    "zrangebyscore",
];

struct Scene {
    admin: Client,
    user: Client,
}

impl Scene {
    /// Sets five permits of each kind, and a latch of five.
    async fn reset(&self) {
        let (plain, leases) = (
            self.admin.semaphore("s"),
            self.admin.expirable_semaphore("e"),
        );
        plain.delete().await.unwrap();
        plain.try_set_permits(5).await.unwrap();
        leases.delete().await.unwrap();
        leases.try_set_permits(5).await.unwrap();
        let latch = self.admin.count_down_latch("l");
        latch.delete().await.unwrap();
        latch.try_set_count(5).await.unwrap();
    }

    /// Returns four numbers: free plain permits, free permits with leases, held permits with
    /// leases, and the latch's count.
    async fn state(&self) -> (i64, i64, u64, u64) {
        let leases = self.admin.expirable_semaphore("e");
        (
            self.admin.semaphore("s").available_permits().await.unwrap(),
            leases.available_permits().await.unwrap(),
            leases.acquired_permits().await.unwrap(),
            self.admin.count_down_latch("l").count().await.unwrap(),
        )
    }

    /// Performs an action. Returns its name, whether it succeeded, and the state that must result.
    async fn act(&self, action: usize) -> (&'static str, bool, (i64, i64, u64, u64)) {
        let (plain, leases) = (self.user.semaphore("s"), self.user.expirable_semaphore("e"));
        let latch = self.user.count_down_latch("l");
        let same = (5, 5, 0, 5);
        match action {
            0 => {
                let got = plain.try_acquire_many(2).await;
                let ok = got.is_ok();
                if let Ok(Some(permit)) = got {
                    permit.forget();
                }
                ("acquire", ok, if ok { (3, 5, 0, 5) } else { same })
            }
            1 => {
                let ok = plain.release(2).await.is_ok();
                ("release", ok, if ok { (7, 5, 0, 5) } else { same })
            }
            2 => {
                let ok = plain.drain().await.is_ok();
                ("drain", ok, if ok { (0, 5, 0, 5) } else { same })
            }
            3 => {
                let ok = plain.delete().await.is_ok();
                ("delete", ok, if ok { (0, 5, 0, 5) } else { same })
            }
            4 => {
                let got = leases.try_acquire_many(2).await;
                let ok = got.is_ok();
                if let Ok(Some(permit)) = got {
                    permit.forget();
                }
                (
                    "acquire with a lease",
                    ok,
                    if ok { (5, 3, 2, 5) } else { same },
                )
            }
            5 => {
                let ok = leases.set_permits(7).await.is_ok();
                ("set permits", ok, if ok { (5, 7, 0, 5) } else { same })
            }
            6 => {
                let ok = latch.count_down_by(2).await.is_ok();
                ("count down", ok, if ok { (5, 5, 0, 3) } else { same })
            }
            _ => {
                let ok = latch.count_down_by(5).await.is_ok();
                ("open", ok, if ok { (5, 5, 0, 0) } else { same })
            }
        }
    }
}

/// Starts a server with a user to whom commands can be denied. Returns the server, and a scene with
/// the user's and an administrator's view.
async fn scene() -> (RedisServer, Scene) {
    let server = RedisServer::start().unwrap();
    rule(&server, &["on", ">secret", "~*", "&*", "+@all"]);
    let url = format!("redis://app:secret@127.0.0.1:{}", server.port());
    let scene = Scene {
        admin: Client::connect(&server.url()).await.unwrap(),
        user: Client::connect(&url).await.unwrap(),
    };
    (server, scene)
}

fn rule(server: &RedisServer, rules: &[&str]) {
    let command = [&["ACL", "SETUSER", "app"][..], rules].concat();
    assert_eq!(server.command(&command).unwrap(), Reply::Text("OK".into()));
}

#[tokio::test]
async fn denied_command_leaves_no_half_done_change() {
    let (server, scene) = scene().await;
    let mut refused = 0;
    for command in COMMANDS {
        for action in 0..8 {
            scene.reset().await;
            rule(&server, &[&format!("-{command}")]);
            let (what, ok, expected) = scene.act(action).await;
            rule(&server, &[&format!("+{command}")]);
            refused += usize::from(!ok);
            // Requests that may have run are undone in the background.
            eventually("all is given back", async || {
                scene.user.activity().releases == 0
            })
            .await;
            let state = scene.state().await;
            assert_eq!(state, expected, "{what} without {command}: {ok}");
        }
    }
    assert!(refused > 20, "only {refused} were refused");
}

#[tokio::test]
async fn refused_permit_release_leaves_permit_in_use() {
    let (server, scene) = scene().await;
    let mut refused = 0;
    for command in COMMANDS {
        scene.reset().await;
        let admin = scene.admin.expirable_semaphore("e");
        let held = admin.try_acquire().await.unwrap().expect("five are free");
        let id = held.id();
        held.forget();
        let short = admin.clone().fixed_lease(Duration::from_millis(20));
        let over = short.acquire().await.unwrap();
        let over_id = over.id();
        over.forget();
        eventually("a lease is over", async || {
            admin.remaining_ttl(over_id).await.unwrap() == Ttl::Free
        })
        .await;

        rule(&server, &[&format!("-{command}")]);
        let user = scene.user.expirable_semaphore("e");
        let reclaimed = user.available_permits().await;
        let released = user.release(id).await;
        rule(&server, &[&format!("+{command}")]);
        refused += usize::from(released.is_err()) + usize::from(reclaimed.is_err());

        let held = u64::from(released.is_err());
        assert_eq!(
            admin.acquired_permits().await.unwrap(),
            held,
            "without {command}"
        );
        assert_eq!(admin.permits().await.unwrap(), 5, "without {command}");
    }
    assert!(refused > 5, "only {refused} were refused");
}
