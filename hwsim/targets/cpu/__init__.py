"""CPU cores in front of a hierarchy of caches."""
