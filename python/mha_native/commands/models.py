"""The command ``models``: the models in the local cache of Hugging Face."""

import argparse
import json
from collections.abc import Iterable
from importlib.util import find_spec

from ..functions.needed_packages import pip_install
from ..models.files.hub_cache import hub_cache
from ._cached_models import CachedModel, cached_models
from .errors import errors_of_files
from .output import row_of_terminal, write_at_once

about = "the models in the local cache of Hugging Face: kind, size, and whether they are supported"

_MODULES = {"Pillow": "PIL"}  # of packages whose module has another name

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as one JSON list, for programs")


def run(options: argparse.Namespace) -> None:
    cache = hub_cache()
    with errors_of_files("read", cache):
        found = list(cached_models(cache)) if cache.exists() else []
    if options.json:
        entries = ({**model._asdict(), "is_supported": model.reason is None} for model in found)
        print(json.dumps(list(entries), indent=2))
    elif not found:
        print(f"No models in the cache {cache}")
    else:
        _show(found)


def _show(models: Iterable[CachedModel]) -> None:
    rows = [("model", "family", "kind", "size", "supported")]
    rows += [
        (model.name, model.family or "-", model.kind or "-", _size(model.bytes), _support(model)) for model in models
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        start = "  ".join(
            cell.rjust(width) if column == 3 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        write_at_once(row_of_terminal(f"{start}  ", row[4]))


def _support(model: CachedModel) -> str:
    if model.reason is not None:
        return f"no: {model.reason}"
    missing = [package for package in model.needs if find_spec(_MODULES.get(package, package)) is None]
    return f"yes, after {pip_install(*missing)}" if missing else f"yes, with {' and '.join(model.needs)}"


def _size(count: int) -> str:
    unit, name = next((each for each in _UNITS if count >= each[0]), _UNITS[-1])
    return f"{count / unit:.1f} {name}"
