"""Score options for recomputed gradients, in operations of any array library."""

from collections.abc import Mapping
from typing import Any

from ..functions.messages import listed

BLOCK = 64  # queries, and keys, of an entry of block_mask


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

    def in_reach(self, seen: Any, distances: Any) -> Any:
        """Return `seen` without keys that `is_causal` and `window` hide. Distances are from query to key."""
        left, right = self.get("window", (-1, -1))
        if self.get("is_causal"):
            seen = seen & (distances <= 0)
        if left >= 0:
            seen = seen & (distances >= -left)
        return seen & (distances <= right) if right >= 0 else seen

    def refuse_unread(self) -> None:
        """Raise RuntimeError for options that were not read."""
        if self._unread:
            name = "scaled_dot_product_attention"
            raise RuntimeError(f"{name}: no gradient is computed with {listed(sorted(self._unread))}")
