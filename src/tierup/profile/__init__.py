"""What was observed: the machine here, later the inputs, activations, branches and counters of live calls."""
