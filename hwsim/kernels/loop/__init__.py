"""Loops: how they are cut, lowered to nests of accesses, and counted."""
