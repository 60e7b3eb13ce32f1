package org.leasehold.interop;

import java.lang.invoke.MethodType;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.List;

/** Calls methods that the oldest supported version of Redisson does not have. */
final class Newer {
    private Newer() {}

    static Object call(Object object, String method, Object... arguments) {
        Class<?>[] types = Arrays.stream(arguments).map(Newer::type).toArray(Class<?>[]::new);
        try {
            return object.getClass().getMethod(method, types).invoke(object, arguments);
        } catch (InvocationTargetException error) {
            throw error.getCause() instanceof RuntimeException cause
                    ? cause
                    : new IllegalStateException(error.getCause());
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException("this version has no " + method, error);
        }
    }

    /** Returns the type of the parameter: a primitive for a number, the interface for a list. */
    private static Class<?> type(Object argument) {
        return argument instanceof List
                ? List.class
                : MethodType.methodType(argument.getClass()).unwrap().returnType();
    }
}
