package org.leasehold.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Many locks of one holder, which the watchdog renews. */
final class Held {
    /** At once; the holder is a number, so that one thread need not wait for each answer. */
    private static final int AT_ONCE = 256;

    private static final long HOLDER = 1;

    private final RedissonClient redisson;
    private final Call call;

    Held(RedissonClient redisson, Call call) {
        this.redisson = redisson;
        this.call = call;
    }

    Object acquire() throws Exception {
        return all(lock -> lock.lockAsync(HOLDER));
    }

    Object release() throws Exception {
        return all(lock -> lock.unlockAsync(HOLDER));
    }

    private Object all(Change change) throws Exception {
        List<RFuture<Void>> open = new ArrayList<>();
        for (int n = 0; n < call.count("locks"); n++) {
            open.add(change.start(redisson.getLock(call.name() + ":" + n)));
            if (open.size() == AT_ONCE) {
                end(open);
            }
        }
        end(open);
        return Map.of();
    }

    private static void end(List<RFuture<Void>> open) throws Exception {
        for (RFuture<Void> one : open) {
            one.get();
        }
        open.clear();
    }

    private interface Change {
        RFuture<Void> start(RLock lock);
    }
}
