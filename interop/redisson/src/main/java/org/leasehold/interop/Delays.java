package org.leasehold.interop;

import java.util.ArrayList;
import java.util.List;
import org.HdrHistogram.Histogram;

/** The durations of calls, for one thread or for all. */
final class Delays {
    private final Histogram nanos = new Histogram(3);

    void add(long delay) {
        nanos.recordValue(delay);
    }

    void add(Delays others) {
        nanos.add(others.nanos);
    }

    /** Returns pairs of a duration in nanoseconds and the number of calls that took it. */
    List<long[]> counts() {
        List<long[]> counts = new ArrayList<>();
        nanos.recordedValues()
                .forEach(
                        value ->
                                counts.add(
                                        new long[] {
                                            value.getValueIteratedTo(),
                                            value.getCountAddedInThisIterationStep()
                                        }));
        return counts;
    }
}
