"""Processing in memory: a small vector unit at every DRAM bank, and one buffer that tells all of them the same."""
