"""From a kernel's loops to what an array does: products of matrices, tiles that fit the scratchpads, and their order."""
