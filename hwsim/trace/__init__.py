"""Which memory a kernel touches, and in which order: strided loop nests, tensor views, external traces."""
