"""Classes of machines, a folder each: what a file may say, what things cost, how work is laid out, and why."""
