"""The command line: one file for each command. This is the only package that prints."""
