"""The only place with a clock: agents take blocks, walk their steps, and hold links and units while they need them."""
