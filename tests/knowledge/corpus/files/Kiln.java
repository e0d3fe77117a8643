package org.example.pottery;

import java.util.List;

/**
 * A kiln and what is fired in it.
 * class Nothing is only mentioned here.
 */
public class Kiln {
    private final int hottest;

    public Kiln(int hottest) {
        this.hottest = hottest;
    }

    /** Whether a glaze survives. */
    @Deprecated
    public boolean survives(Glaze glaze, List<String> log) {
        if (glaze.meltsAt() > hottest) {
            return true;
        }
        log.add("ran off");
        return false;
    }

    public static <T> T first(List<T> all) {
        return all.get(0);
    }

    interface Glaze {
        int meltsAt();
    }
}
