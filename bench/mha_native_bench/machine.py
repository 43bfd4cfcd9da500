"""The machine and the software of a measurement, which two measurements must share to be compared."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path

import mha_native
from mha_native_bench.probes import active_isa_reason, compiler


def describe_machine() -> dict[str, str]:
    """Facts by name, without those that the system does not report."""
    facts = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "mha_native": mha_native.__version__,
        "compiler": compiler,
        "isa": f"{mha_native.active_isa()} ({active_isa_reason()})",
        "cpu": cpu_model(),
        "cpus": f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}",
        "last cache": f"{last_cache_bytes() / 2**20:.3g} MiB",
        "governor": first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load": f"{os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else "",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    }
    return {name: fact for name, fact in facts.items() if fact}


def commit() -> str:
    """The commit of the checkout that holds this file; empty if it is installed. The library may be another commit."""
    here = Path(__file__).parent
    try:
        git = ["git", "-C", str(here), "describe", "--always", "--abbrev=12", "--dirty=, with changes", "--exclude=*"]
        return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    numbers = [f"{key} {facts[key].strip()}" for key in ("cpu family", "model") if key in facts]
    return ", ".join([facts.get("model name", platform.machine()).strip(), *numbers])


def last_cache_bytes() -> int:
    """Size of the largest cache of the first core; 32 MiB where the system does not report it."""
    sizes = [first_line(str(path)) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes if size.endswith("K")), default=32 * 2**20)


def seconds_of_others() -> float | None:
    """CPU seconds that other processes, and other guests of the host, have used so far; None except on Linux."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, fields[:8])
    except (OSError, ValueError):
        return None
    busy = user + nice + system + interrupts + soft_interrupts + stolen
    return busy / os.sysconf("SC_CLK_TCK") - time.process_time()


def first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
