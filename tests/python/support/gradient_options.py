"""Score options of recomputed gradients: each row of the option table is compared by a test, and others are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from mha_native.functions.options import KEYWORD_OPTIONS


def check_every_option(cases: Iterable[dict[str, Any]], recompute: Callable[[dict[str, Any]], Any]) -> None:
    """Check that the compared `cases` have every option, and that `recompute` refuses an option that it does not read.

    A case whose option is refused fails where it is compared: so each option is read, or its case is missing here.
    """
    assert {name for options in cases for name in options} == KEYWORD_OPTIONS | {"attn_mask"}
    with pytest.raises(RuntimeError, match=r"^scaled_dot_product_attention: no gradient is computed with new_option$"):
        recompute({"new_option": 1})
