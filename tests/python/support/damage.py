"""Damage of files: bytes that differ or are missing, and values of JSON that are others."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

# What takes the place of a value in JSON.
ODD: list[Any] = [
    None, True, -1, 0, 1, 2, 255, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 0.5, 1e300,
    float("nan"), float("-inf"), "", "bert", "..", "/", "\0", "\n", "\ud800", "x" * 5000, [], {}, [[]], [2**62, 2**62],
]  # fmt: skip


def damaged_bytes(raw: bytes, rng: random.Random) -> bytes:
    """`raw` with one to four changes: bytes that differ, are missing, are added, or stand twice."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        # The beginnings of files say what is in them, so that half of the changes are there.
        first = rng.randrange(min(len(data), rng.choice([64, 4096, 1 << 30])) or 1)
        last = first + rng.choice([1, 1, 2, 8, 100])
        kind = rng.choice(["change", "flip", "remove", "insert", "repeat", "cut"])
        if kind == "change":
            data[first:last] = rng.randbytes(last - first)
        elif kind == "flip" and first < len(data):
            data[first] ^= 1 << rng.randrange(8)
        elif kind == "remove":
            del data[first:last]
        elif kind == "insert":
            data[first:first] = rng.choice([b"\0", b"\xff", b"[" * 50, b'"', b"9" * 30, b"-", b"\n", rng.randbytes(8)])
        elif kind == "repeat":
            data[first:first] = data[first:last]
        elif kind == "cut":
            del data[first:]
    return bytes(data)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value of JSON with each of its keys or indices."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def damaged_json(raw: bytes, rng: random.Random, values: Sequence[Any] = ODD, only: type = object) -> bytes:
    """Return JSON, or safetensors with a header in JSON, with one to three values that are others.

    New values are some of `values`, in place of values of the type `only`.
    """
    start, end = 0, len(raw)
    if raw[:1] not in b"{[":
        start, end = 8, 8 + int.from_bytes(raw[:8], "little")
    value = json.loads(raw[start:end])
    for _ in range(rng.randint(1, 3)):
        chosen = [(container, key) for container, key in places(value) if isinstance(container[key], only)]
        container, key = rng.choice(chosen or [([None], 0)])
        kind = rng.choice(["replace", "replace", "remove", "move"])
        if kind == "replace":
            container[key] = copy.deepcopy(rng.choice(values))  # which may be changed in its turn
        elif kind == "remove":
            del container[key]
        elif isinstance(container[key], int):
            container[key] += rng.choice([-8, -4, -1, 1, 4, 8])
    text = json.dumps(value).encode()
    return (len(text).to_bytes(8, "little") if start else b"") + text + raw[end:]
