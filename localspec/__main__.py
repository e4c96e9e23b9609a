"""Entry point: `localspec` and `python -m localspec`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from localspec.cli.app import run

    run()


if __name__ == "__main__":
    main()
