"""Turn the vectors of tokens into embeddings: pooling, the modules after it, and the features to keep."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.runtime import threads_of_call
from ...layers._constructor_arguments import checked_size, optional_size
from ..files.modules_json import Module, check_normalize
from ..text.prompts import Settings
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


class Form(NamedTuple):
    """The form of the embeddings that a call returns."""

    features: int
    normalize: bool | None  # None: the default of the model
    num_threads: int | None


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


class HasHead:
    """A model with a head, whose settings say how many features of an embedding are kept."""

    _head: Head
    _settings: Settings

    @property
    def embed_dim(self) -> int:
        """E, the features of an embedding; a call can choose fewer by `truncate_dim`."""
        kept = self._settings.truncate_dim
        return self._head.features if kept is None else min(kept, self._head.features)

    @property
    def truncate_dim(self) -> int | None:
        """The number of features of an embedding that are kept by default; None keeps all. Can be set."""
        return self._settings.truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, truncate_dim: int | None) -> None:
        checked = optional_size(type(self).__name__, "truncate_dim", truncate_dim)
        self._settings = self._settings._replace(truncate_dim=checked)

    def _form(self, name: str, truncate_dim: int | None, normalize: bool | None, num_threads: int | None) -> Form:
        """Check the arguments of a call, and return them with the defaults of the model."""
        features = self.embed_dim
        if truncate_dim is not None:
            features = min(self._head.features, checked_size(name, "truncate_dim", truncate_dim))
        if normalize is not None:
            normalize = _core.boolean(name, "normalize", normalize)
        return Form(features, normalize, threads_of_call(name, num_threads))
