"""Whole models: graphs with repeated blocks, what they hold, what they cost, and the files that people have."""
