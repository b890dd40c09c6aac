"""Programs: statements over named tensors, and what follows from them: counts, math, operands, loops, derivatives."""
