"""Embeddings of a corpus by Ray Data: a pool of actors, each with a model of its own."""

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
    """The rows of a dataset, each with the embedding of its text: the bits of `SentenceEncoder.encode` in one process.

    Parameters
    ----------
    dataset : ray.data.Dataset
        With a column of str, whatever it is read from.
    model : path, or name of a model
        As `SentenceEncoder.from_pretrained` takes it. It is read here once, so that a mistake is an error of this call,
        and once by each actor, which needs it in the same place.
    column : str, default "text"
        The column of texts.
    output_column : str, default "embedding"
        The column that is added: a tensor of float32 [E] in each row.
    prompt_name, prompt, truncate_dim, normalize
        As for `SentenceEncoder.encode`.
    dtype, weight_dtype
        As for `SentenceEncoder.from_pretrained`.
    concurrency : int, optional
        Most actors, each with a model in memory; default: as many as there are processors for. At first there are no
        more than leave one processor of the cluster to what reads and writes the dataset.
    num_cpus : int, default 1
        Processors that Ray sets aside for each actor, and threads that it computes with, as has its tokenizer.
    batch_size : int, default 1024
        Most rows that an actor holds at once. It cuts them into batches of tokens, so that long texts take no more
        memory in the layers than short ones.

    Returns
    -------
    dataset : ray.data.Dataset
        Computed as it is read, as all of Ray Data. An actor that dies is started again, and computes the batch again.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of these; if the dataset is known to have no such column, or has `output_column` already.
        If a text is no str, where the dataset is read: a ``RayTaskError``, which has this message in its own.
    FileNotFoundError, OSError
        If the model cannot be read.
    ImportError
        Without Ray Data: ``pip install "mha_native[ray]"``.

    Notes
    -----
    All actors compute with the instruction set of this process, `mha_native.active_isa`, since another may round
    otherwise. A machine without it is an error, which says so; ``MHA_NATIVE_ISA`` here chooses one that all have.

    What reads and writes the dataset needs a processor besides those of an actor: a cluster that has no more than
    `num_cpus` waits for ever, as Ray says in its log.

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
    """The strategy of Ray Data for at most so many actors, which at first leave processors of the cluster to others.

    Actors on all processors and what reads the dataset would wait for each other. Ray adds actors where it may.
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
    """The arguments of a `ModelActor`, with which a model has been read here; the errors of that name `function`."""
    with in_the_name_of(function):
        SentenceEncoder.from_pretrained(model, **loading).encode_batches([], **options)
    place = str(Path(model).resolve()) if Path(model).exists() else str(model)  # actors run in folders of their own
    given = {"model": place, "loading": loading, "options": options}
    return given | {"num_threads": num_threads, "isa": active_isa(), "version": _core.__version__}


class ModelActor:
    """What an actor of a pool has: a model, and the threads that Ray gives it processors for."""

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
        os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # of the tokenizer, which reads it at its first text
        set_num_threads(num_threads)
        use_isa(isa)
        self._model = SentenceEncoder.from_pretrained(model, **loading)
        self._options = options

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """The embeddings [N, E] of `texts`."""
        return self._model.encode(texts, **self._options)


class _Embedding(ModelActor):
    """Adds the embeddings to a batch of rows."""

    def __init__(self, column: str, output_column: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._column, self._output_column = column, output_column

    def __call__(self, batch: Any) -> Any:
        """`batch`, a pyarrow.Table, with one more column."""
        from ray.data.extensions import ArrowTensorArray

        _check_columns(batch.column_names, self._column, self._output_column)
        texts = batch.column(self._column).to_pylist()
        with in_the_name_of("embed", texts=f"column {shown(self._column)}"):
            rows = self.encode(texts)
        return batch.append_column(self._output_column, ArrowTensorArray.from_numpy(rows))


def ray_data(function: str) -> Any:
    """The module ray.data; ImportError without it."""
    try:
        import ray.data
    except ImportError as error:
        raise ImportError(f'{function}: {error.name} is not installed: pip install "mha_native[ray]"') from error
    return ray.data


def _check_columns(names: list[str], column: str, output_column: str) -> None:
    if column not in names:
        raise ValueError(f"embed: column must be one of the dataset, {listed(names)}; got {shown(column)}")
    if output_column in names:
        raise ValueError(f"embed: output_column must be a new one; the dataset has {shown(output_column)} already")
