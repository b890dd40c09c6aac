"""Convolutions of images, and what follows them."""
