"""What all tests have in common: the same examples every time, however slow the computer."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("hwsim", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("hwsim")
