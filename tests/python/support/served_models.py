"""A tiny model of each kind that a server takes."""

from __future__ import annotations

from pathlib import Path

import tiny_bert
import tiny_classifiers
import tiny_language_model


def write(home: Path) -> dict[str, Path]:
    """Return the directories of models by their names: "embed", "rank", "label" and "text"."""
    return {
        "embed": tiny_bert.write(home / "embed"),
        "rank": tiny_classifiers.write(home / "rank", labels=1),
        "label": tiny_classifiers.write(home / "label", labels=3),
        "text": tiny_language_model.write(home / "text", n_positions=400),
    }
