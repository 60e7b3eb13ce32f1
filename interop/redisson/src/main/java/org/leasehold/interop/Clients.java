package org.leasehold.interop;

import com.google.gson.JsonElement;
import java.net.URI;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Supplier;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.MasterSlaveServersConfig;
import org.redisson.config.SentinelServersConfig;
import org.redisson.config.SingleServerConfig;

/** The Redisson clients of this process by name, each with its named threads. */
final class Clients {
    private static final String CLUSTER = "redis-cluster://";
    private static final String SENTINELS = "redis-sentinel://";

    private final String defaultAddress;
    private final Map<String, Client> clients = new ConcurrentHashMap<>();

    Clients(String defaultAddress) {
        this.defaultAddress = defaultAddress;
    }

    /** Connects a client and returns its id, the first half of the holder id of its threads. */
    String open(Call call) {
        Client client = new Client(call.client(), Redisson.create(config(call)));
        Client before = clients.put(call.client(), client);
        if (before != null) {
            before.close();
        }
        return client.redisson().getId();
    }

    /** Shuts a client down. The locks of its threads stay held until they expire. */
    Void close(String name) {
        Client client = named(name);
        clients.remove(name, client);
        client.close();
        return null;
    }

    /** Interrupts the thread in its current call. */
    Void interrupt(Call call) {
        named(call.client()).interrupt(call.thread());
        return null;
    }

    Client named(String name) {
        Client client = clients.get(name);
        if (client == null) {
            throw new IllegalArgumentException("no client `" + name + "`; send op `client` first");
        }
        return client;
    }

    private Config config(Call call) {
        String address =
                call.optional("address").map(JsonElement::getAsString).orElse(defaultAddress);
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setNettyThreads(4);
        call.optional("watchdog_ms")
                .map(JsonElement::getAsLong)
                .ifPresent(config::setLockWatchdogTimeout);
        call.optional("check_replicas")
                .map(JsonElement::getAsBoolean)
                .ifPresent(check -> Newer.call(config, "setCheckLockSyncedSlaves", check));
        if (address.startsWith(CLUSTER)) {
            clustered(address, config, call);
            return config;
        }
        if (address.startsWith(SENTINELS)) {
            watched(address, config, call);
            return config;
        }
        URI server = URI.create(address);
        call.optional("replica")
                .map(JsonElement::getAsString)
                .ifPresentOrElse(
                        replica -> beside(replica, config, call, server),
                        () -> alone(config, call, server));
        return config;
    }

    private static void alone(Config config, Call call, URI server) {
        SingleServerConfig single = config.useSingleServer();
        single.setAddress(server.getScheme() + "://" + server.getHost() + ":" + server.getPort())
                .setConnectionPoolSize(16)
                .setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionPoolSize(8)
                .setSubscriptionConnectionMinimumIdleSize(1)
                // A fair lock listens on a channel for each waiting thread.
                .setSubscriptionsPerConnection(50)
                // A JVM that has just started on a busy machine may need longer than 10 s.
                .setConnectTimeout(60_000)
                // The address is a number, so there is no name to look up again.
                .setDnsMonitoringInterval(-1);
        call.optional("timeout_ms").map(JsonElement::getAsInt).ifPresent(single::setTimeout);
        call.optional("retry_attempts")
                .map(JsonElement::getAsInt)
                .ifPresent(single::setRetryAttempts);
        call.optional("subscription_timeout_ms")
                .map(JsonElement::getAsInt)
                .ifPresent(timeout -> Newer.call(single, "setSubscriptionTimeout", timeout));
        call.optional("channels")
                .map(JsonElement::getAsInt)
                .ifPresent(
                        channels ->
                                single.setSubscriptionConnectionPoolSize(1)
                                        .setSubscriptionsPerConnection(channels));
        if (call.optional("as_shipped").isPresent()) {
            asShipped(config, single);
        }
        call.optional("prefix")
                .map(JsonElement::getAsString)
                .ifPresent(prefix -> Prefix.set(prefix, config, single));
        authenticate(single, server);
    }

    /** Sets Redisson's default sizes, with room for a channel for each waiter of a fair lock. */
    private static void asShipped(Config config, SingleServerConfig single) {
        Config shipped = new Config();
        SingleServerConfig sizes = shipped.useSingleServer();
        config.setNettyThreads(shipped.getNettyThreads());
        single.setConnectionPoolSize(sizes.getConnectionPoolSize())
                .setConnectionMinimumIdleSize(sizes.getConnectionMinimumIdleSize())
                .setSubscriptionConnectionPoolSize(sizes.getSubscriptionConnectionPoolSize());
    }

    /** Sets a server and a replica, for which Redisson waits. */
    private static void beside(String replica, Config config, Call call, URI server) {
        MasterSlaveServersConfig pair = config.useMasterSlaveServers();
        pair.setMasterAddress(server.toString()).addSlaveAddress(replica);
        set(pair, call);
    }

    /** Sets the nodes of a cluster: {@code redis-cluster://host:port,host:port}. */
    private static void clustered(String address, Config config, Call call) {
        ClusterServersConfig cluster = config.useClusterServers();
        for (String node : address.substring(CLUSTER.length()).split(",")) {
            cluster.addNodeAddress("redis://" + node);
        }
        roomy(cluster);
        set(cluster, call);
    }

    /** Sets a master and its sentinels: {@code redis-sentinel://host:port,host:port/master}. */
    private static void watched(String address, Config config, Call call) {
        String[] hostsAndMaster = address.substring(SENTINELS.length()).split("/", 2);
        SentinelServersConfig watched = config.useSentinelServers();
        watched.setMasterName(hostsAndMaster[1]);
        for (String sentinel : hostsAndMaster[0].split(",")) {
            watched.addSentinelAddress("redis://" + sentinel);
        }
        roomy(watched);
        set(watched, call);
    }

    private static void roomy(BaseMasterSlaveServersConfig<?> several) {
        several.setMasterConnectionPoolSize(16)
                .setSubscriptionConnectionPoolSize(8)
                // A fair lock listens on a channel for each waiting thread.
                .setSubscriptionsPerConnection(50);
    }

    private static void set(BaseMasterSlaveServersConfig<?> several, Call call) {
        several.setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1)
                .setConnectTimeout(60_000)
                .setDnsMonitoringInterval(-1);
        call.optional("timeout_ms").map(JsonElement::getAsInt).ifPresent(several::setTimeout);
        call.optional("retry_attempts")
                .map(JsonElement::getAsInt)
                .ifPresent(several::setRetryAttempts);
    }

    /** Sets user and password, because Redisson 3.16.8 ignores those in an address. */
    @SuppressWarnings("deprecation")
    private static void authenticate(SingleServerConfig single, URI server) {
        if (server.getUserInfo() == null) {
            return;
        }
        String[] parts = server.getUserInfo().split(":", 2);
        if (!parts[0].isEmpty()) {
            single.setUsername(parts[0]);
        }
        if (parts.length == 2) {
            single.setPassword(parts[1]);
        }
    }

    /** One Redisson client and the threads that make calls on it. */
    static final class Client {
        /** The classes in which Redisson's waiters sleep. Waits for server replies use others. */
        private static final Set<String> LATCHES =
                Set.of("java.util.concurrent.Semaphore", "org.redisson.misc.ReclosableLatch");

        private final String name;
        private final RedissonClient redisson;
        private final Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
        private final Map<String, Thread> started = new ConcurrentHashMap<>();
        private final Map<String, RLock> shared = new ConcurrentHashMap<>();

        private Client(String name, RedissonClient redisson) {
            this.name = name;
            this.redisson = redisson;
        }

        RedissonClient redisson() {
            return redisson;
        }

        Executor thread(String thread) {
            return threads.computeIfAbsent(
                    thread,
                    absent ->
                            Executors.newSingleThreadExecutor(
                                    task -> {
                                        Thread java = new Thread(task, name + "/" + thread);
                                        java.setDaemon(true);
                                        started.put(thread, java);
                                        return java;
                                    }));
        }

        /**
         * Returns whether a thread sleeps until a message wakes it. It has then subscribed and been
         * refused, and a wake-up that arrives now is not missed.
         */
        boolean sleeps(String thread) {
            Thread java = started.get(thread);
            return java != null
                    && Arrays.stream(java.getStackTrace())
                            .anyMatch(frame -> LATCHES.contains(frame.getClassName()))
                    && (java.getState() == Thread.State.WAITING
                            || java.getState() == Thread.State.TIMED_WAITING);
        }

        RLock shared(String lock, Supplier<RLock> fresh) {
            return shared.computeIfAbsent(lock, absent -> fresh.get());
        }

        private void interrupt(String thread) {
            started.get(thread).interrupt();
        }

        private void close() {
            redisson.shutdown();
            threads.values().forEach(ExecutorService::shutdown);
        }
    }
}
