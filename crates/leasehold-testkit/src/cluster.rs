//! A Redis Cluster for one test, which can move its slots.

use std::{
    collections::HashMap,
    fmt, io,
    ops::RangeInclusive,
    thread,
    time::{Duration, Instant},
};

use crate::{
    reply::Reply,
    server::{Builder, RedisServer},
    wait::eventually,
};

/// The time limit for the nodes to agree on something.
const AGREED_WITHIN: Duration = Duration::from_secs(60);

/// Number of slots of every cluster.
const SLOTS: usize = 16384;

/// A cluster: masters that share the slots, and their replicas. Every process is killed when this
/// value is dropped.
pub struct Cluster {
    /// The nodes, the initial masters first. A failover changes which nodes are masters, but not
    /// the order.
    nodes: Vec<RedisServer>,
    /// The ids by which the nodes know each other, which do not depend on the addresses that they
    /// announce.
    ids: Vec<String>,
}

impl Cluster {
    /// Starts a plain, empty cluster, without passwords or TLS.
    ///
    /// # Panics
    ///
    /// Panics if the program is missing, or the server can't be part of a cluster.
    pub fn start(masters: usize, replicas_of_each: usize) -> Self {
        Self::of(&RedisServer::builder(), masters, replicas_of_each)
    }

    /// Starts a cluster of servers with these settings. With TLS, all nodes have certificates from
    /// the same authority, and also use TLS among themselves.
    ///
    /// # Panics
    ///
    /// Like [`Cluster::start`].
    pub fn of(settings: &Builder, masters: usize, replicas_of_each: usize) -> Self {
        Self::of_each(|_| settings.clone(), masters, replicas_of_each)
    }

    /// Like [`Cluster::of`], but `settings` returns the settings for each node from the node's
    /// number.
    ///
    /// # Panics
    ///
    /// Like [`Cluster::start`].
    pub fn of_each(
        settings: impl Fn(usize) -> Builder,
        masters: usize,
        replicas_of_each: usize,
    ) -> Self {
        let count = masters * (1 + replicas_of_each);
        let settings: Vec<_> = (0..count)
            .map(|node| of_a_cluster(settings(node), replicas_of_each > 0))
            .collect();
        let nodes = thread::scope(|scope| {
            let starting: Vec<_> = settings
                .iter()
                .map(|settings| scope.spawn(|| settings.clone().start()))
                .collect();
            let started = starting
                .into_iter()
                .map(|node| node.join().expect("no panic"));
            started.collect::<io::Result<Vec<_>>>()
        });
        let nodes = nodes.expect("redis-server starts; install it");
        let id = |node| text(&run(node, &["CLUSTER", "MYID"])).to_owned();
        let cluster = Self {
            ids: nodes.iter().map(id).collect(),
            nodes,
        };
        cluster.share_slots(masters);
        cluster.meet();
        cluster.replicate(masters);
        cluster.wait_until_whole();
        cluster
    }

    fn share_slots(&self, masters: usize) {
        for (n, master) in self.nodes[..masters].iter().enumerate() {
            // The nodes start with different epochs. Otherwise they would first have to agree on
            // different ones.
            let epoch = (n + 1).to_string();
            expect_ok(master, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            let slots = n * SLOTS / masters..(n + 1) * SLOTS / masters;
            // The slots are listed one by one, because servers before 7.0 do not know ranges.
            let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            expect_ok(master, &command);
        }
    }

    fn meet(&self) {
        let (host, port) = (self.nodes[0].host(), self.nodes[0].port().to_string());
        for node in &self.nodes[1..] {
            expect_ok(node, &["CLUSTER", "MEET", host, &port]);
        }
        eventually("every node knows every other", AGREED_WITHIN, || {
            let known = format!("cluster_known_nodes:{}", self.nodes.len());
            self.nodes.iter().all(|node| info(node).contains(&known))
        });
    }

    fn replicate(&self, masters: usize) {
        for (n, replica) in self.nodes[masters..].iter().enumerate() {
            let master = self.id(n % masters);
            // The node refuses the command until it has learned that the other node is a master.
            eventually("it takes its master", AGREED_WITHIN, || {
                is_ok(&run(replica, &["CLUSTER", "REPLICATE", &master]))
            });
        }
        for replica in &self.nodes[masters..] {
            eventually("it is in step", AGREED_WITHIN, || {
                let info = run(replica, &["INFO", "replication"]);
                text(&info).contains("master_link_status:up")
            });
        }
    }

    /// Waits until every running node accepts calls, all running nodes agree on the owner of each
    /// slot, and each node is connected to every other one. A message that is published before this
    /// time may not reach all nodes.
    ///
    /// # Panics
    ///
    /// Panics if this takes more than a minute.
    pub fn wait_until_whole(&self) {
        eventually("the cluster is whole", AGREED_WITHIN, || {
            let running: Vec<_> = self.nodes.iter().filter(|node| answers(node)).collect();
            let maps: Vec<_> = running.iter().map(|node| owners(node)).collect();
            running
                .iter()
                .all(|node| info(node).contains("cluster_state:ok") && links(node) >= running.len())
                && maps.iter().all(|map| *map == maps[0])
        });
    }

    /// Returns the URL for clients, which names all nodes.
    pub fn url(&self) -> String {
        let first = self.nodes[0].url();
        let (scheme, first) = first.split_once("://").expect("a URL");
        // In the URL, user and password appear only once, before the first host.
        let others = self.nodes[1..].iter().map(|node| node.url());
        let others = others.map(|url| url.rsplit(['@', '/']).next().expect("a host").to_owned());
        let others: String = others.map(|host| format!(",{host}")).collect();
        format!("{scheme}-cluster://{first}{others}")
    }

    /// Returns all nodes, the initial masters first.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the slot of a key.
    ///
    /// # Panics
    ///
    /// Panics if no node answers.
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = run(self.any(), &["CLUSTER", "KEYSLOT", key]).as_int();
        u16::try_from(slot.expect("a number")).expect("a slot")
    }

    /// Returns the number of the node that has this slot.
    ///
    /// # Panics
    ///
    /// Panics if no node has the slot.
    pub fn owner(&self, slot: u16) -> usize {
        let (_, owner) = ranges(self.any())
            .into_iter()
            .find(|(slots, _)| slots.contains(&slot))
            .expect("a node has the slot");
        self.number_of(&owner).expect("the node is known")
    }

    fn number_of(&self, id: &str) -> Option<usize> {
        self.ids.iter().position(|known| known == id)
    }

    /// Returns all slots of a node.
    ///
    /// # Panics
    ///
    /// Panics if no node answers.
    pub fn slots_of(&self, node: usize) -> Vec<u16> {
        let owners = (0..).zip(owners(self.any()));
        owners
            .filter(|(_, of)| *of == self.ids[node])
            .map(|(slot, _)| slot)
            .collect()
    }

    /// Returns the node that has this key.
    ///
    /// # Panics
    ///
    /// Panics if no node has the key's slot.
    pub fn node_of(&self, key: &str) -> &RedisServer {
        &self.nodes[self.owner(self.slot_of(key))]
    }

    /// Opens a slot. From then on, if the slot's owner does not have a key, it redirects the client
    /// to `to`.
    ///
    /// # Panics
    ///
    /// Panics if a node refuses.
    pub fn open(&self, slot: u16, to: usize) {
        let (from, slot) = (self.owner(slot), slot.to_string());
        let (source, target) = (self.id(from), self.id(to));
        let importing = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source];
        expect_ok(&self.nodes[to], &importing);
        let migrating = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target];
        expect_ok(&self.nodes[from], &migrating);
    }

    /// Moves one key of an open slot. Returns whether the key existed.
    ///
    /// # Panics
    ///
    /// Panics if the node refuses.
    pub fn move_key(&self, from: usize, to: usize, key: &str) -> bool {
        let (host, port) = (self.nodes[to].host(), self.nodes[to].port().to_string());
        let migrate = ["MIGRATE", host, &port, key, "0", "5000", "REPLACE"];
        match run(&self.nodes[from], &migrate) {
            Reply::Text(said) => said == "OK",
            other => panic!("{migrate:?}: {other:?}"),
        }
    }

    /// Returns the keys in a slot that this node has, at most a thousand.
    ///
    /// # Panics
    ///
    /// Panics if the node does not answer.
    pub fn keys_in(&self, node: usize, slot: u16) -> Vec<String> {
        let slot = slot.to_string();
        let keys = run(
            &self.nodes[node],
            &["CLUSTER", "GETKEYSINSLOT", &slot, "1000"],
        );
        let keys = keys.as_array().expect("a list").iter();
        keys.map(|key| text(key).to_owned()).collect()
    }

    /// Ends the move of an open slot: the slot now belongs to `to`.
    ///
    /// # Panics
    ///
    /// Panics if a node refuses.
    pub fn assign(&self, slot: u16, to: usize) {
        let (from, slot, target) = (self.owner(slot), slot.to_string(), self.id(to));
        let assign = ["CLUSTER", "SETSLOT", &slot, "NODE", &target];
        // The new owner is notified first. In the other order, the slot would have no owner for a
        // moment.
        expect_ok(&self.nodes[to], &assign);
        if from != to {
            expect_ok(&self.nodes[from], &assign);
        }
        // A node that has not learned the new owner's epoch could take the slot back with an older
        // map. The keys in the slot would then be lost.
        let epoch = self.epoch_at(to, &target);
        eventually("all know how new the map is", AGREED_WITHIN, || {
            let mut nodes = (0..self.nodes.len()).filter(|n| answers(&self.nodes[*n]));
            nodes.all(|node| self.epoch_at(node, &target) == epoch)
        });
    }

    /// Returns the config epoch of the node `id`, according to `node`.
    fn epoch_at(&self, node: usize, id: &str) -> String {
        let nodes = run(&self.nodes[node], &["CLUSTER", "NODES"]);
        let of = text(&nodes).lines().find(|line| line.starts_with(id));
        let epoch = of.and_then(|line| line.split(' ').nth(6));
        epoch.unwrap_or_default().to_owned()
    }

    /// Moves a slot key by key, in a random order, while clients continue to use it.
    ///
    /// # Panics
    ///
    /// Panics if a node refuses.
    pub fn migrate(&self, slot: u16, to: usize) {
        self.migrate_slowly(slot, to, Duration::ZERO);
    }

    /// Like [`migrate`](Self::migrate), but leaves the slot open for the duration `open` when about
    /// half of its keys have moved.
    ///
    /// # Panics
    ///
    /// Like [`migrate`](Self::migrate).
    pub fn migrate_slowly(&self, slot: u16, to: usize, open: Duration) {
        let from = self.owner(slot);
        if from == to {
            return;
        }
        self.open(slot, to);
        let mut keys = self.keys_in(from, slot);
        shuffle(&mut keys);
        for key in keys.drain(..keys.len() / 2) {
            self.move_key(from, to, &key);
        }
        thread::sleep(open);
        loop {
            let mut keys = self.keys_in(from, slot);
            if keys.is_empty() {
                break;
            }
            shuffle(&mut keys);
            for key in keys {
                self.move_key(from, to, &key);
            }
        }
        self.assign(slot, to);
    }

    /// Moves a slot with all its keys in one step, which Valkey can do from 9.0 on. Returns `false`
    /// if the servers can't.
    ///
    /// # Panics
    ///
    /// Panics if the slot has not moved within a minute.
    pub fn migrate_at_once(&self, slot: u16, to: usize) -> bool {
        let (from, target, slots) = (self.owner(slot), self.id(to), slot.to_string());
        let migrate = [
            "CLUSTER",
            "MIGRATESLOTS",
            "SLOTSRANGE",
            &slots,
            &slots,
            "NODE",
            &target,
        ];
        let mut can = true;
        eventually("the slot has moved", AGREED_WITHIN, || {
            if self.owner(slot) == to {
                return true;
            }
            // The node refuses the command while the slot is being moved, and for a moment after a
            // failover. If a move has failed, it must be started again.
            if let Reply::Error(said) = run(&self.nodes[from], &migrate) {
                can = !said.to_lowercase().contains("unknown subcommand");
            }
            !can
        });
        can
    }

    /// Pauses scripts and writes on this master, and waits until its replicas have everything that
    /// it wrote. New requests wait on the server.
    ///
    /// # Panics
    ///
    /// Panics if the replicas are not in step within a minute.
    pub fn settle(&self, master: usize) {
        let node = &self.nodes[master];
        expect_ok(node, &["CLIENT", "PAUSE", "120000", "WRITE"]);
        eventually("its replicas have everything", AGREED_WITHIN, || {
            let info = run(node, &["INFO", "replication"]);
            let lines: Vec<_> = text(&info).lines().collect();
            let offset = lines
                .iter()
                .find_map(|line| line.strip_prefix("master_repl_offset:"));
            let offset = format!("offset={},", offset.unwrap_or_default());
            let mut replicas = lines.iter().filter(|line| line.contains("state=online"));
            replicas.all(|line| line.contains(&offset))
        });
    }

    /// Ends the pause that [`settle`](Self::settle) began.
    ///
    /// # Panics
    ///
    /// Panics if the node does not answer.
    pub fn unsettle(&self, node: usize) {
        expect_ok(&self.nodes[node], &["CLIENT", "UNPAUSE"]);
    }

    /// Waits until another node has the slots of this node, which was killed or suspended.
    ///
    /// # Panics
    ///
    /// Panics if no other node has the slots within a minute.
    pub fn wait_until_replaced(&self, node: usize) {
        eventually("a replica takes over", AGREED_WITHIN, || {
            let mut running = self.nodes.iter().filter(|node| answers(node));
            running.all(|of| !owners(of).contains(&self.ids[node]))
        });
    }

    /// Waits until each replica is in step with its master, and all masters have the same number of
    /// replicas.
    ///
    /// # Panics
    ///
    /// Panics if this takes more than a minute.
    pub fn wait_until_replicated(&self) {
        eventually("each replica is in step", AGREED_WITHIN, || {
            let (masters, replicas): (Vec<_>, Vec<_>) =
                (0..self.nodes.len()).partition(|node| self.is_master(*node));
            let of_each = replicas.len() / masters.len();
            let is_in_step = |node: &usize| {
                let info = run(&self.nodes[*node], &["INFO", "replication"]);
                text(&info).contains("master_link_status:up")
            };
            masters
                .iter()
                .all(|node| self.replicas_of(*node).len() == of_each)
                && replicas.iter().all(is_in_step)
        });
    }

    /// Promotes a replica. The old master becomes a replica of the new one.
    ///
    /// # Panics
    ///
    /// Panics if this takes more than a minute.
    pub fn fail_over(&self, replica: usize) {
        // A replica gives up a failover after five seconds. If it is asked to fail over again
        // before that, its master may remain paused.
        const GIVEN_UP_AFTER: Duration = Duration::from_secs(6);
        let node = &self.nodes[replica];
        let mut next_ask = Instant::now();
        eventually("the replica takes over", AGREED_WITHIN, || {
            if self.is_master(replica) {
                return true;
            }
            // The replica refuses the command while it is not in step with its master.
            if Instant::now() >= next_ask && is_ok(&run(node, &["CLUSTER", "FAILOVER"])) {
                next_ask = Instant::now() + GIVEN_UP_AFTER;
            }
            false
        });
        self.wait_until_whole();
    }

    /// Returns whether this node is a master.
    pub fn is_master(&self, node: usize) -> bool {
        let role = self.nodes[node].command(&["ROLE"]);
        role.is_ok_and(|role| {
            role.as_array()
                .is_some_and(|role| text(&role[0]) == "master")
        })
    }

    /// Returns the replicas of the master `node`.
    ///
    /// # Panics
    ///
    /// Panics if no node answers.
    pub fn replicas_of(&self, node: usize) -> Vec<usize> {
        let replicas = run(&self.nodes[node], &["CLUSTER", "REPLICAS", &self.id(node)]);
        let replicas = replicas.as_array().expect("a list").iter();
        let ids: Vec<_> = replicas
            .filter_map(|line| text(line).split(' ').next().map(str::to_owned))
            .collect();
        (0..self.nodes.len())
            .filter(|n| answers(&self.nodes[*n]) && ids.contains(&self.id(*n)))
            .collect()
    }

    /// Returns all keys of all running masters, sorted.
    pub fn keys(&self) -> Vec<String> {
        self.gather(RedisServer::keys)
    }

    /// Returns all channels that have subscribers, both ordinary and sharded ones, sorted and
    /// without duplicates.
    pub fn channels(&self) -> Vec<String> {
        self.gather(|node| {
            let mut channels = node.channels();
            if let Reply::Array(sharded) = run(node, &["PUBSUB", "SHARDCHANNELS"]) {
                channels.extend(sharded.iter().map(|channel| text(channel).to_owned()));
            }
            channels
        })
    }

    fn gather(&self, of: impl Fn(&RedisServer) -> Vec<String>) -> Vec<String> {
        let masters = (0..self.nodes.len()).filter(|n| self.is_master(*n));
        let mut all: Vec<_> = masters.flat_map(|n| of(&self.nodes[n])).collect();
        all.sort();
        all.dedup();
        all
    }

    fn any(&self) -> &RedisServer {
        let running = self.nodes.iter().find(|node| answers(node));
        running.expect("a node runs")
    }

    /// Returns the id by which the other nodes know this node.
    pub fn id(&self, node: usize) -> String {
        self.ids[node].clone()
    }

    /// Makes the cluster redirect clients of this node to this port on the machine.
    ///
    /// # Panics
    ///
    /// Panics if not all nodes know the port within a minute.
    pub fn announce(&self, node: usize, port: u16) {
        let announced = port.to_string();
        let announce = ["CONFIG", "SET", "cluster-announce-port", &announced];
        expect_ok(&self.nodes[node], &announce);
        eventually("all nodes know the port", AGREED_WITHIN, || {
            let knows = |of: &RedisServer| {
                let nodes = run(of, &["CLUSTER", "NODES"]);
                let lines: Vec<_> = text(&nodes).lines().collect();
                let line = lines.iter().find(|line| line.starts_with(&self.ids[node]));
                line.is_some_and(|line| line.contains(&format!(":{announced}@")))
            };
            self.nodes.iter().filter(|of| answers(of)).all(knows)
        });
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.nodes).finish()
    }
}

fn of_a_cluster(settings: Builder, has_replicas: bool) -> Builder {
    // A failover takes seconds by default, which is too long for a test. Without replicas there are
    // no failovers, and with a short timeout, nodes that are slow on a busy machine would only
    // declare each other dead.
    let timeout = if has_replicas { "1000" } else { "15000" };
    settings
        .arg("cluster-enabled", "yes")
        .arg("cluster-config-file", "nodes.conf")
        .arg("cluster-node-timeout", timeout)
        // Replicas take over even if they last heard from their master long ago.
        .arg("cluster-replica-validity-factor", "0")
        .arg("repl-diskless-sync-delay", "0")
}

/// Returns the id of each slot's master according to this node, or an empty string if the slot has
/// no owner.
fn owners(node: &RedisServer) -> Vec<String> {
    let mut owners = vec![String::new(); SLOTS];
    for (slots, id) in ranges(node) {
        for slot in slots {
            id.clone_into(&mut owners[usize::from(slot)]);
        }
    }
    owners
}

/// Returns the ranges of slots on a node's map, each with the id of its owner.
fn ranges(node: &RedisServer) -> Vec<(RangeInclusive<u16>, String)> {
    const ID: usize = 2;
    let map = run(node, &["CLUSTER", "SLOTS"]);
    let ranges = map.as_array().expect("a list").iter().map(|range| {
        let range = range.as_array().expect("a range of slots");
        let slot = |at: usize| {
            let number = range[at].as_int().expect("a number");
            u16::try_from(number).expect("a slot")
        };
        let id = text(&range[2].as_array().expect("a node")[ID]);
        (slot(0)..=slot(1), id.to_owned())
    });
    ranges.collect()
}

fn answers(node: &RedisServer) -> bool {
    // A suspended process is not queried, because waiting for its answer would take the whole time
    // limit.
    node.is_running() && node.command(&["PING"]).is_ok()
}

fn info(node: &RedisServer) -> String {
    text(&run(node, &["CLUSTER", "INFO"])).to_owned()
}

/// Returns to how many nodes this node is connected, including itself.
fn links(node: &RedisServer) -> usize {
    const STATE: usize = 7;
    let nodes = run(node, &["CLUSTER", "NODES"]);
    let states = text(&nodes).lines();
    let states = states.filter_map(|line| line.split(' ').nth(STATE));
    states.filter(|state| *state == "connected").count()
}

fn run(node: &RedisServer, command: &[&str]) -> Reply {
    let reply = node.command(command);
    reply.unwrap_or_else(|error| panic!("{node:?}: {command:?}: {error}"))
}

fn is_ok(reply: &Reply) -> bool {
    reply.as_text() == Some("OK")
}

fn expect_ok(node: &RedisServer, command: &[&str]) {
    let reply = run(node, command);
    assert!(is_ok(&reply), "{node:?}: {command:?}: {reply:?}");
}

fn text(reply: &Reply) -> &str {
    reply
        .as_text()
        .unwrap_or_else(|| panic!("no text: {reply:?}"))
}

/// Puts the keys into a random order.
fn shuffle(keys: &mut [String]) {
    let seeds = HashMap::<String, ()>::new();
    let hash = |key: &String| std::hash::BuildHasher::hash_one(seeds.hasher(), key);
    keys.sort_by_cached_key(hash);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_moves_with_its_keys() {
        let cluster = Cluster::start(3, 0);
        let slot = cluster.slot_of("x");
        let from = cluster.owner(slot);
        for key in ["x", "{x}:a", "{x}:b"] {
            expect_ok(&cluster.nodes[from], &["SET", key, "1"]);
        }
        let to = (from + 1) % 3;
        cluster.migrate(slot, to);
        cluster.wait_until_whole();
        assert_eq!(cluster.owner(slot), to);
        assert_eq!(cluster.nodes[to].keys(), ["x", "{x}:a", "{x}:b"]);
        assert_eq!(cluster.keys(), ["x", "{x}:a", "{x}:b"]);
    }

    #[test]
    fn replica_takes_over_from_its_master() {
        let cluster = Cluster::start(1, 1);
        assert_eq!(cluster.replicas_of(0), [1]);
        cluster.fail_over(1);
        assert!(cluster.is_master(1) && !cluster.is_master(0));
        assert_eq!(cluster.owner(0), 1);
    }
}
