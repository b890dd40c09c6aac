"""Plots: the only place that knows matplotlib."""
