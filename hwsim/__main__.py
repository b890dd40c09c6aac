"""``python -m hwsim`` and ``hwsim`` are the command line."""

import gc
import sys

_SELDOM = 300_000, 20, 20
"""How often the memory of the process is searched for circles: imports alone leave 100,000 objects."""


def main() -> int:
    """Run the command line of this process; gives its exit code."""
    gc.set_threshold(*_SELDOM)
    from hwsim.cli.app import main as run
    from hwsim.cli.arguments import CTRL_C

    CTRL_C.heed()
    code = run(sys.argv[1:])
    gc.freeze()  # the process ends: nobody needs to look for circles among all modules once more
    return code


if __name__ == "__main__":
    sys.exit(main())
