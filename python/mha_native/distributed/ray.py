"""Embeddings of a corpus by Ray Data: a pool of actors, each with its own copy of the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from ..functions.messages import in_the_name_of, listed, name_of_type, shown
from ..functions.needed_packages import pip_install
from ..functions.runtime import active_isa, set_num_threads, use_isa
from ..functions.scalars import checked_integer
from ..models import SentenceEncoder

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["embed"]


def embed(
    dataset: Dataset,
    model: str | PathLike[str],
    *,
    column: str = "text",
    output_column: str = "embedding",
    prompt_name: str | None = None,
    prompt: str | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    dtype: DTypeLike = "float32",
    weight_dtype: str | None = None,
    concurrency: int | None = None,
    num_cpus: int = 1,
    batch_size: int = 1024,
) -> Dataset:
    """Add the embedding of its text to each row of a dataset, with the bits of `SentenceEncoder.encode`.

    Parameters
    ----------
    dataset : ray.data.Dataset
        A dataset of any source with a column of str.
    model : path, or name of a model
        As for `SentenceEncoder.from_pretrained`. This call reads it once, to report errors, and each actor reads it
        from the same place.
    column : str, default "text"
        The column of texts.
    output_column : str, default "embedding"
        The new column: a tensor of float32 [E] in each row.
    prompt_name, prompt, truncate_dim, normalize
        As for `SentenceEncoder.encode`.
    dtype, weight_dtype
        As for `SentenceEncoder.from_pretrained`.
    concurrency : int, optional
        Largest number of actors, each with a model in memory. Default: limited by the processors of the cluster. At
        first one processor stays free, to read and write the dataset.
    num_cpus : int, default 1
        Processors that Ray reserves for each actor, and threads of its computation and of its tokenizer.
    batch_size : int, default 1024
        Largest number of rows that an actor holds at once. It cuts them into batches of tokens, so that long texts take
        no more memory in the layers than short texts.

    Returns
    -------
    dataset : ray.data.Dataset
        Computed lazily, as usual in Ray Data. An actor that dies is restarted, and computes its batch again.

    Raises
    ------
    TypeError, ValueError
        If an argument is not valid, the dataset is known to lack the column, or has `output_column` already. A text
        that is not a str raises a ``RayTaskError`` with this message when the dataset is read.
    FileNotFoundError, OSError
        If the model cannot be read.
    ImportError
        Without Ray Data: ``pip install "ray[data]"``.

    Notes
    -----
    All actors compute with the instruction set of this process, `mha_native.active_isa`, since other sets may round
    differently. A machine without this set is an error; choose a common set by ``MHA_NATIVE_ISA`` in this process.

    Reading and writing the dataset needs a processor in addition to the processors of an actor: a cluster with only
    `num_cpus` processors waits forever, as the log of Ray says.

    Examples
    --------
    >>> import ray.data  # doctest: +SKIP
    >>> from mha_native.distributed.ray import embed
    >>> texts = ray.data.read_parquet("corpus")  # doctest: +SKIP
    >>> embed(texts, "all-MiniLM-L6-v2").write_parquet("embeddings")  # doctest: +SKIP
    """
    data = ray_data("embed")
    if not isinstance(dataset, data.Dataset):
        raise TypeError(f"embed: dataset must be a ray.data.Dataset; got {name_of_type(dataset)}")
    for name, given in (("column", column), ("output_column", output_column)):
        if not isinstance(given, str):
            raise TypeError(f"embed: {name} must be a str; got {shown(given)}")
    schema = dataset.schema(fetch_if_missing=False)
    if schema is not None:
        _check_columns(schema.names, column, output_column)
    num_cpus = checked_integer("embed", "num_cpus", num_cpus, 1)
    batch_size = checked_integer("embed", "batch_size", batch_size, 1)
    compute = actor_pool("embed", concurrency, num_cpus, 1)
    loading = {"dtype": dtype, "weight_dtype": weight_dtype}
    options = {"prompt_name": prompt_name, "prompt": prompt, "truncate_dim": truncate_dim, "normalize": normalize}
    arguments = model_arguments("embed", model, loading, options, num_cpus)
    return dataset.map_batches(
        _Embedding,
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=compute,
        num_cpus=num_cpus,
        fn_constructor_kwargs=arguments | {"column": column, "output_column": output_column},
    )


def actor_pool(function: str, concurrency: int | None, num_cpus: int, reserved: int) -> Any:
    """Return the strategy of Ray Data for a pool of actors that at first leaves some processors free.

    Actors on all processors and the readers of the dataset would wait for each other. Ray adds actors when possible.
    """
    strategy = ray_data(function).ActorPoolStrategy
    import ray

    most = None if concurrency is None else checked_integer(function, "concurrency", concurrency, 1)
    room = (int(ray.cluster_resources().get("CPU", 0)) - reserved) // num_cpus
    return strategy(min_size=1, initial_size=max(1, room if most is None else min(room, most)), max_size=most)


def model_arguments(
    function: str,
    model: str | PathLike[str],
    loading: Mapping[str, Any],
    options: Mapping[str, Any],
    num_threads: int,
) -> dict[str, Any]:
    """Return the arguments of a `ModelActor`, after reading the model with them. Errors name `function`."""
    with in_the_name_of(function):
        SentenceEncoder.from_pretrained(model, **loading).encode_batches([], **options)
    place = str(Path(model).resolve()) if Path(model).exists() else str(model)  # actors run in folders of their own
    given = {"model": place, "loading": loading, "options": options}
    return given | {"num_threads": num_threads, "isa": active_isa(), "version": _core.__version__}


class ModelActor:
    """An actor of a pool: a model, and as many threads as its processors."""

    def __init__(
        self,
        model: str,
        loading: Mapping[str, Any],
        options: Mapping[str, Any],
        num_threads: int,
        isa: str,
        version: str,
    ) -> None:
        if version != _core.__version__:
            raise RuntimeError(f"embed: an actor has mha_native {_core.__version__}, and its caller has {version}")
        os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # the tokenizer reads it at its first text
        set_num_threads(num_threads)
        use_isa(isa)
        self._model = SentenceEncoder.from_pretrained(model, **loading)
        self._options = options

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """Return the embeddings [N, E] of `texts`."""
        return self._model.encode(texts, **self._options)


class _Embedding(ModelActor):
    """An actor that adds embeddings to batches of rows."""

    def __init__(self, column: str, output_column: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._column, self._output_column = column, output_column

    def __call__(self, batch: Any) -> Any:
        """Return `batch`, a pyarrow.Table, with the column of embeddings."""
        from ray.data.extensions import ArrowTensorArray

        _check_columns(batch.column_names, self._column, self._output_column)
        texts = batch.column(self._column).to_pylist()
        with in_the_name_of("embed", texts=f"column {shown(self._column)}"):
            rows = self.encode(texts)
        return batch.append_column(self._output_column, ArrowTensorArray.from_numpy(rows))


def ray_data(function: str) -> Any:
    """Return the module ray.data; ImportError without it."""
    try:
        import ray.data
    except ImportError as error:
        command = pip_install("ray[data]", extra="ray")
        raise ImportError(f"{function}: {error.name} is not installed: {command}") from error
    return ray.data


def _check_columns(names: list[str], column: str, output_column: str) -> None:
    if column not in names:
        raise ValueError(f"embed: column must be one of the dataset, {listed(names)}; got {shown(column)}")
    if output_column in names:
        raise ValueError(f"embed: output_column must be a new one; the dataset has {shown(output_column)} already")
