"""What is computed: operations with their schedules. Kernels do the real math, and know nothing of
hardware."""
