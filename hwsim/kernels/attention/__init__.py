"""Attention and softmax."""
