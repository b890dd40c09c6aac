"""Models without a clock: caches, scratchpads, registers, DRAM. They count; the engine adds time."""
