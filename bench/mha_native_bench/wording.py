"""Numbers as the report prints them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """'1 thread', '2 threads'."""
    return f"{number} {noun}{'s' * (number != 1)}"


def ratio_text(value: float) -> str:
    """With two decimals below 10, with fewer above."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def three_digits(value: float) -> str:
    """With three significant digits, and with the whole integer part."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
