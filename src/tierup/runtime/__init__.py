"""Plans at work: native programs, bound and checked. The hot path itself is `tierup._native`."""
