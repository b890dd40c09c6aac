"""The operations that a workload file may ask for, one family in each file, with their sizes and schedules."""
