package org.leasehold.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Many locks of one holder, which the watchdog renews. */
final class Held {
    /** Number of open calls. The holder is a number, so one thread can have several. */
    private static final int AT_ONCE = 256;

    private static final long HOLDER = 1;

    private final RedissonClient redisson;
    private final Call call;

    Held(RedissonClient redisson, Call call) {
        this.redisson = redisson;
        this.call = call;
    }

    Object acquire() throws Exception {
        int failed = all(lock -> lock.lockAsync(HOLDER));
        if (failed > 0) {
            throw new IllegalStateException(failed + " locks could not be acquired");
        }
        return Map.of();
    }

    /** Releases the locks. A lock that can't be released was lost without a notice. */
    Object release() throws Exception {
        return Map.of("lost", all(lock -> lock.unlockAsync(HOLDER)));
    }

    /** Applies the change to all locks. Returns how many changes failed. */
    private int all(Change change) throws Exception {
        int failed = 0;
        List<RFuture<Void>> open = new ArrayList<>();
        for (int n = 0; n < call.count("locks"); n++) {
            open.add(change.start(redisson.getLock(call.name() + ":" + n)));
            if (open.size() == AT_ONCE) {
                failed += failures(open);
            }
        }
        return failed + failures(open);
    }

    private static int failures(List<RFuture<Void>> open) throws InterruptedException {
        int failed = 0;
        for (RFuture<Void> one : open) {
            try {
                one.get();
            } catch (ExecutionException refused) {
                failed++;
            }
        }
        open.clear();
        return failed;
    }

    private interface Change {
        RFuture<Void> start(RLock lock);
    }
}
