"""Chains of operations on named tensors."""
