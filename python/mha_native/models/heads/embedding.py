"""Turn the vectors of tokens into embeddings: pooling, the modules after it, and the features to keep."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..files.modules_json import Module, check_normalize
from .dense import DenseConfig, load_dense, read_dense
from .pooling import Pooling, read_pooling, scaled_to_length_1


class HeadConfig(NamedTuple):
    """The modules after the transformer, as their files describe them."""

    pooling: Pooling
    steps: tuple[DenseConfig | None, ...]  # the modules after the pooling, in order; None scales to length 1
    normalize: bool  # whether embeddings are scaled to length 1 at the end
    features: int  # width of an embedding


def read_head(modules: list[Module], embed_dim: int) -> HeadConfig:
    """Read the modules after a transformer with `embed_dim` features; the default is mean pooling alone.

    Raises OSError or ValueError if a file cannot be read, does not fit, or asks for an unsupported feature.
    """
    pooling = Pooling()
    steps: list[DenseConfig | None] = []
    features = embed_dim
    for module in modules:
        if module.kind == "Pooling":
            pooling = read_pooling(module.folder / "config.json", embed_dim)
            features = embed_dim * len(pooling.modes)
        elif module.kind == "Dense":
            dense = read_dense(module.folder, features)
            steps.append(dense)
            features = dense.out_features
        elif module.kind == "Normalize":
            check_normalize(module.folder)
            steps.append(None)
    normalize = False
    while steps and steps[-1] is None:
        steps.pop()
        normalize = True
    return HeadConfig(pooling, tuple(steps), normalize, features)


class Head:
    """The modules after a transformer, with their weights."""

    def __init__(self, config: HeadConfig) -> None:
        self._config = config
        self._steps: list[Callable[[NDArray[Any], int | None], NDArray[Any]]] = [
            scaled_to_length_1 if step is None else load_dense(step) for step in config.steps
        ]

    @property
    def features(self) -> int:
        """Width of a whole embedding."""
        return self._config.features

    @property
    def pooling_modes(self) -> tuple[str, ...]:
        """The forms of pooling whose results are concatenated."""
        return self._config.pooling.modes

    @property
    def pools_prompts(self) -> bool:
        """Whether the tokens of a prompt are pooled."""
        return self._config.pooling.include_prompt

    def embeddings(
        self,
        rows: NDArray[Any],
        cu_seqlens: NDArray[np.int64],
        prompt_tokens: int,
        features: int,
        normalize: bool | None,
        num_threads: int | None,
    ) -> NDArray[np.float32]:
        """Return the embeddings [n, features] of n texts; `rows` to `prompt_tokens` are as for a call of `Pooling`.

        The first `features` are kept, and `normalize` scales these to length 1. By default all features are scaled if
        modules.json says so, before some are left out.
        """
        is_cut = features < self.features
        scales_all = self._config.normalize if normalize is None else normalize and not is_cut
        vectors = self._config.pooling(rows, cu_seqlens, prompt_tokens, scales_all and not self._steps, num_threads)
        for step in self._steps:
            vectors = step(vectors, num_threads)
        if self._steps and scales_all:
            vectors = scaled_to_length_1(vectors, num_threads)
        if is_cut:
            vectors = np.ascontiguousarray(vectors[:, :features])
            if normalize:
                vectors = scaled_to_length_1(vectors, num_threads)
        return vectors.astype(np.float32, copy=False)
