"""Small kernels: vectors, sums, views, probes of memory, and formulas."""
