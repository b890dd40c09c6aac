"""Several devices: how they are joined, how they talk, how work is split over them, and how they serve requests."""
