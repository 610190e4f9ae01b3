"""`python -m skiway.cli` is `skiway`."""

from skiway.cli import run_process

if __name__ == "__main__":
    run_process()
