"""Where the program starts, as `minispec` and as `python -m minispec`: Ctrl-C is heard before anything is imported."""

from minispec import streams
from minispec.interrupts import run


def start() -> None:
    """Import the command line, and run it."""
    from minispec.cli import main

    streams.watch()
    main()


def main() -> None:
    """The program."""
    streams.hold_places()
    run(start)


if __name__ == "__main__":
    main()
