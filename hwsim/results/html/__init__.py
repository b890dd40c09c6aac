"""One HTML file that tells all about a run or a sweep, and needs nothing but a browser."""
