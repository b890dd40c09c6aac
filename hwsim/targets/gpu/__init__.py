"""GPUs without a clock: what the blocks of a kernel cost, and how they fill the machine."""
