"""One file for each form that a trace can have; `hwsim.trace.reader` picks the right one."""
