"""Entry point: `localspec` and `python -m localspec`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    try:
        from localspec.cli.app import run

        run()
    except KeyboardInterrupt:  # while modules are still being imported
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
