"""hwsim: what would this kernel cost on that machine, and why?"""

__version__ = "0.1.0"
