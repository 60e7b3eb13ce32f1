package org.leasehold.interop;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import org.redisson.Redisson;

/**
 * Lets a test in another language use a real Redisson client. Requests arrive as JSON lines on
 * stdin. Answers are JSON lines on stdout, each with the id of its request.
 *
 * <p>A request names a client and one of its threads. Requests of one thread run in their order on
 * one Java thread, because Redisson's holder is the thread. Different threads run at the same time.
 */
public final class Driver {
    private final Clients clients;
    private final Operations operations = new Operations();
    private final Answers answers;

    /** Runs requests outside the clients' threads. A slow connect must not delay the others. */
    private final Executor control =
            Executors.newCachedThreadPool(
                    task -> {
                        Thread thread = new Thread(task, "control");
                        thread.setDaemon(true);
                        return thread;
                    });

    private Driver(String address, Answers answers) {
        this.clients = new Clients(address);
        this.answers = answers;
    }

    public static void main(String[] args) throws IOException {
        if (args.length != 1) {
            System.err.println("usage: Driver redis://host:port");
            System.exit(2);
        }
        PrintStream answers =
                new PrintStream(
                        new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        // Output that a library prints must not appear between two answers.
        System.setOut(System.err);

        Driver driver = new Driver(args[0], new Answers(answers));
        BufferedReader requests =
                new BufferedReader(
                        new InputStreamReader(
                                new FileInputStream(FileDescriptor.in), StandardCharsets.UTF_8));
        try {
            for (String line; (line = requests.readLine()) != null; ) {
                driver.accept(JsonParser.parseString(line).getAsJsonObject());
            }
        } catch (RuntimeException malformed) {
            // Without this, Redisson's threads would keep alive a JVM that reads no requests.
            malformed.printStackTrace();
            Runtime.getRuntime().halt(2);
        }
        // The test has ended. An orderly shutdown would wait for locks that stay held.
        Runtime.getRuntime().halt(0);
    }

    private void accept(JsonObject request) {
        Call call = new Call(request, clients);
        switch (call.op()) {
            case "exit_hard" -> Runtime.getRuntime().halt(9);
            case "client" ->
                    run(control, call, () -> clients.open(call));
            case "close_client" -> run(control, call, () -> clients.close(call.client()));
            case "sleeps" ->
                    run(
                            control,
                            call,
                            () -> clients.named(call.client()).sleeps(call.thread()));
            case "interrupt" -> run(control, call, () -> clients.interrupt(call));
            case "version" ->
                    run(
                            control,
                            call,
                            () -> Redisson.class.getPackage().getImplementationVersion());
            default -> onThread(call);
        }
    }

    private void onThread(Call call) {
        try {
            Clients.Client client = clients.named(call.client());
            Operations.Operation operation = operations.named(call.op());
            run(
                    client.thread(call.thread()),
                    call,
                    () -> operation.run(client.redisson(), call));
        } catch (RuntimeException unknown) {
            answers.error(call, unknown);
        }
    }

    private void run(Executor executor, Call call, Task task) {
        executor.execute(
                () -> {
                    call.begin();
                    try {
                        Object value = task.run();
                        call.end();
                        answers.ok(call, value);
                    } catch (Throwable failure) {
                        call.end();
                        answers.error(call, failure);
                    }
                });
    }

    /** One call into Redisson. */
    private interface Task {
        Object run() throws Exception;
    }
}
