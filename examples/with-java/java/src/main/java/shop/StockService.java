package shop;

import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Sells a stock that it shares with a Rust service. It sells one item each time it has the lock. */
public final class StockService {
    private StockService() {}

    public static void main(String[] arguments) throws InterruptedException {
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[0]);
        // Both services read the stock as plain text. The codec does not matter for a lock.
        config.setCodec(StringCodec.INSTANCE);
        RedissonClient redisson = Redisson.create(config);
        try {
            sellAll(redisson, arguments[1]);
        } finally {
            redisson.shutdown();
        }
    }

    private static void sellAll(RedissonClient redisson, String name) throws InterruptedException {
        RBucket<String> stock = redisson.getBucket(name);
        RLock lock = redisson.getLock(name + ":lock");
        bothAreThere(redisson, name);
        boolean more = true;
        while (more) {
            lock.lock();
            try {
                more = sellOne(stock);
            } finally {
                lock.unlock();
            }
            Thread.sleep(3); // the other work of a service
        }
    }

    private static boolean sellOne(RBucket<String> stock) throws InterruptedException {
        long from = System.currentTimeMillis();
        int left = Integer.parseInt(stock.get());
        if (left == 0) {
            return false;
        }
        Thread.sleep(10); // the sale: long enough for the other service to read the same number
        stock.set(Integer.toString(left - 1));
        System.out.println(from + " " + System.currentTimeMillis() + " java " + left);
        return true;
    }

    private static void bothAreThere(RedissonClient redisson, String name)
            throws InterruptedException {
        redisson.getAtomicLong(name + ":ready").incrementAndGet();
        while (redisson.getAtomicLong(name + ":ready").get() < 2) {
            Thread.sleep(5);
        }
    }
}
