"""Score options that know which of them a recomputed gradient has read."""

from collections.abc import Mapping
from typing import Any

from ..functions.messages import listed


class ReadOptions:
    """Score options. After a recomputation `refuse_unread` finds an option that it ignored.

    The gradient of an ignored option would be silently wrong.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options, self._unread = options, set(options)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the option of this name, which counts as read, or the default."""
        self._unread.discard(name)
        value = self._options.get(name)
        return default if value is None else value

    def refuse_unread(self) -> None:
        """Raise RuntimeError for options that were not read."""
        if self._unread:
            name = "scaled_dot_product_attention"
            raise RuntimeError(f"{name}: no gradient is computed with {listed(sorted(self._unread))}")
