package org.leasehold.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.Optional;
import java.util.function.Supplier;
import org.redisson.api.RLock;

/** One request, and when its call into Redisson began and ended. */
final class Call {
    private final JsonObject request;
    private final Clients clients;
    private long fromNanos;
    private long untilNanos;

    Call(JsonObject request, Clients clients) {
        this.request = request;
        this.clients = clients;
        // The answer to a request that is refused before it runs also has times.
        begin();
        end();
    }

    void begin() {
        fromNanos = System.nanoTime();
    }

    void end() {
        untilNanos = System.nanoTime();
    }

    long fromNanos() {
        return fromNanos;
    }

    long untilNanos() {
        return untilNanos;
    }

    /** Returns the clients of this process, for operations of several clients. */
    Clients clients() {
        return clients;
    }

    /** Returns the object that all calls of this client for this lock share. */
    RLock shared(Supplier<RLock> fresh) {
        return clients.named(client()).shared(text("kind") + " " + name(), fresh);
    }

    JsonElement id() {
        return request.get("id");
    }

    String op() {
        return text("op");
    }

    String client() {
        return text("client");
    }

    String thread() {
        return text("thread");
    }

    String name() {
        return text("name");
    }

    String text(String field) {
        return field(field).getAsString();
    }

    int count(String field) {
        return field(field).getAsInt();
    }

    long number(String field) {
        return field(field).getAsLong();
    }

    /** Returns a field that may be missing. */
    Optional<JsonElement> optional(String field) {
        return Optional.ofNullable(request.get(field)).filter(value -> !value.isJsonNull());
    }

    private JsonElement field(String field) {
        return optional(field)
                .orElseThrow(
                        () ->
                                new IllegalArgumentException(
                                        "request without `" + field + "`: " + request));
    }
}
