package org.leasehold.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.PrintStream;

/** Writes answers, one line each, from any thread. */
final class Answers {
    private final Gson gson = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private final PrintStream out;

    Answers(PrintStream out) {
        this.out = out;
    }

    void ok(Call call, Object value) {
        JsonObject answer = new JsonObject();
        answer.add("id", call.id());
        answer.add("ok", gson.toJsonTree(value));
        write(call, answer);
    }

    void error(Call call, Throwable failure) {
        JsonObject answer = new JsonObject();
        answer.add("id", call.id());
        answer.addProperty("error", failure.getClass().getSimpleName());
        answer.addProperty("message", String.valueOf(failure.getMessage()));
        write(call, answer);
    }

    private void write(Call call, JsonObject answer) {
        answer.addProperty("from_ns", call.fromNanos());
        answer.addProperty("until_ns", call.untilNanos());
        String line = gson.toJson(answer);
        synchronized (out) {
            out.print(line + "\n");
            out.flush();
        }
    }
}
