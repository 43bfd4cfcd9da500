"""When a process waits for input, so that a signal ends its call of the system."""

from __future__ import annotations

import time
from pathlib import Path


def wait_until_asleep(process: int) -> None:
    """Return when a process has slept for 0.3 s, whose number is given.

    A signal that comes shortly before a call of the system stays pending until that call returns. So does one between
    two reads of Python that read a whole file.
    """
    stat, looks, deadline = Path(f"/proc/{process}/stat"), 0, time.monotonic() + 60
    while looks < 5:
        time.sleep(0.06)
        state = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] if stat.exists() else "S"
        looks = looks + 1 if state == "S" else 0
        assert time.monotonic() < deadline, state
