"""`python -m meshard` is the `meshard` command."""

from meshard.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
