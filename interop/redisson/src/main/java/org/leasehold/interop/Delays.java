package org.leasehold.interop;

import java.util.ArrayList;
import java.util.List;
import org.HdrHistogram.Histogram;

/** How long calls took, for one thread or for all. */
final class Delays {
    private final Histogram nanos = new Histogram(3);

    void add(long delay) {
        nanos.recordValue(delay);
    }

    void add(Delays others) {
        nanos.add(others.nanos);
    }

    /** As pairs of nanoseconds and how many calls took that long. */
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
