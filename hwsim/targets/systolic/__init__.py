"""From a kernel's loops to what an array does: matrix products, tiles that fit the scratchpads, and their order."""
