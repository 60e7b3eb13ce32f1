package org.leasehold.interop;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/** A name mapper that adds a prefix to every name. */
final class Prefix {
    private Prefix() {}

    /** Uses reflection: the interface changed its package, the setting moved to {@link Config}. */
    static void set(String prefix, Config config, SingleServerConfig single) {
        Object settings = setter(config) == null ? single : config;
        Method setter = setter(settings);
        Class<?> type = setter.getParameterTypes()[0];
        Object mapper =
                Proxy.newProxyInstance(
                        type.getClassLoader(), new Class<?>[] {type}, mapper(prefix));
        try {
            setter.invoke(settings, mapper);
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException("this version has no name mapper", error);
        }
    }

    private static Method setter(Object settings) {
        return Arrays.stream(settings.getClass().getMethods())
                .filter(method -> method.getName().equals("setNameMapper"))
                .findFirst()
                .orElse(null);
    }

    private static InvocationHandler mapper(String prefix) {
        return (proxy, method, arguments) -> {
            String name = arguments == null ? "" : (String) arguments[0];
            return switch (method.getName()) {
                case "map" -> name == null ? null : prefix + name;
                case "unmap" -> name != null && name.startsWith(prefix)
                        ? name.substring(prefix.length())
                        : name;
                default -> throw new UnsupportedOperationException(method.getName());
            };
        };
    }
}
