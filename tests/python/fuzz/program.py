"""The command line that the programs of this folder share."""

import argparse


def options(description: str, count: int) -> argparse.Namespace:
    """What the user asks for: seed, first, count (`count` if nothing is said) and verbose."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="index of the first call")
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--verbose", action="store_true", help="name each call before it is made")
    return parser.parse_args()
