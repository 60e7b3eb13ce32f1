package org.leasehold.interop;

import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Stream;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** The methods that this version of Redisson has. */
final class Methods {
    private static final List<Class<?>> TYPES =
            List.of(
                    RLock.class,
                    RReadWriteLock.class,
                    RSemaphore.class,
                    RPermitExpirableSemaphore.class,
                    RCountDownLatch.class);

    private Methods() {}

    static void register(Map<String, Operations.Operation> operations) {
        operations.put("methods", (redisson, call) -> all());
    }

    /** Returns the methods, each as {@code type declared-by name parameters}. */
    private static TreeSet<String> all() {
        TreeSet<String> all = new TreeSet<>();
        Stream.concat(TYPES.stream(), fenced())
                .forEach(type -> methods(type).forEach(method -> all.add(line(type, method))));
        methods(RedissonClient.class)
                .filter(method -> TYPES.stream().anyMatch(type -> makes(method, type)))
                .forEach(method -> all.add(line(RedissonClient.class, method)));
        return all;
    }

    /** Returns the type of fenced locks. The older version has none. */
    private static Stream<Class<?>> fenced() {
        try {
            return Stream.of(Class.forName("org.redisson.api.RFencedLock"));
        } catch (ClassNotFoundException missing) {
            return Stream.empty();
        }
    }

    private static boolean makes(Method method, Class<?> type) {
        return type.isAssignableFrom(method.getReturnType());
    }

    private static Stream<Method> methods(Class<?> type) {
        return Arrays.stream(type.getMethods()).filter(method -> !method.isBridge());
    }

    private static String line(Class<?> type, Method method) {
        return String.join(
                " ",
                type.getSimpleName(),
                method.getDeclaringClass().getSimpleName(),
                method.getName(),
                String.valueOf(method.getParameterCount()));
    }
}
