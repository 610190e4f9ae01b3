"""`python -m skiway.cli` is `skiway`."""

from skiway.cli.app import main

if __name__ == "__main__":
    main()
