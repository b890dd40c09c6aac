"""``python -m hwsim`` is the command line."""

from hwsim.cli.app import main

if __name__ == "__main__":
    main()
