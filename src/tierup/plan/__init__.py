"""Plans: the programs that calls run. So far one kind: the baseline, one step for each node of the imported graph."""
