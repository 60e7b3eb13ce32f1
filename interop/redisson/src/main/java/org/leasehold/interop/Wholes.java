package org.leasehold.interop;

import java.util.Arrays;
import java.util.Collection;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Locks that consist of several locks. */
final class Wholes {
    private Wholes() {}

    @SuppressWarnings("deprecation")
    static RLock majority(RLock[] members) {
        return new RedissonRedLock(members);
    }

    /** Returns the lock of a group's values, as `group/a,b`. The older version has no groups. */
    static RLock group(RedissonClient redisson, String name) {
        String[] parts = name.split("/", 2);
        try {
            return (RLock)
                    RedissonClient.class
                            .getMethod("getMultiLock", String.class, Collection.class)
                            .invoke(redisson, parts[0], Arrays.asList(parts[1].split(",")));
        } catch (ReflectiveOperationException missing) {
            throw new UnsupportedOperationException("this Redisson has no groups", missing);
        }
    }
}
