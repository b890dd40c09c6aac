"""``python -m hwsim`` is the command line."""

import sys

from hwsim.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
