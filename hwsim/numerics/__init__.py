"""Number formats: how many bits a value takes, how it is rounded, what a sum of it is kept in."""
