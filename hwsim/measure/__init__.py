"""The computer at hand: the same loops compiled and timed, and its caches, ports and clock found out by timing."""
