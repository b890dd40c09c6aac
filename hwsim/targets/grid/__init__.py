"""A grid of processing elements, each with memories of its own."""
