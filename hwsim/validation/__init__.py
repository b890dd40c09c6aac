"""Every comparison with the outside world: one file per family of `hwsim validate`, with its data."""
