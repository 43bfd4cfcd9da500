"""Embeddings of a corpus by Ray Data: a pool of actors, each with its own copy of the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from ..functions.messages import in_the_name_of, listed, name_of_type, shown
from ..functions.needed_packages import pip_install
from ..functions.runtime import active_isa, set_num_threads, use_isa
from ..functions.scalars import checked_integer
from ..models import ImageEncoder, SentenceEncoder, SparseEmbeddings, SparseEncoder

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["embed"]

TEXT, IMAGE, SPARSE = "text", "image", "sparse"

SPARSE_COLUMNS = ("indices", "values")


class ModelKind(NamedTuple):
    """A class of models whose embeddings actors compute."""

    model: Any
    column: str  # of its inputs, by default
    options: tuple[str, ...]  # of its `encode`


KINDS = {
    TEXT: ModelKind(SentenceEncoder, "text", ("prompt_name", "prompt", "truncate_dim", "normalize")),
    IMAGE: ModelKind(ImageEncoder, "image", ()),
    SPARSE: ModelKind(SparseEncoder, "text", ("prompt_name", "prompt", "task", "max_active_dims")),
}


def kind_of_model(function: str, kind: str) -> ModelKind:
    """Return the class of models that a caller named, or raise ValueError."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{function}: kind must be one of {listed(map(repr, KINDS))}; got {shown(kind)}")
    return KINDS[kind]


def embed(
    dataset: Dataset,
    model: str | PathLike[str],
    *,
    kind: str = TEXT,
    column: str | None = None,
    output_column: str | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    task: str | None = None,
    max_active_dims: int | None = None,
    dtype: DTypeLike = "float32",
    weight_dtype: str | None = None,
    concurrency: int | None = None,
    num_cpus: int = 1,
    batch_size: int = 1024,
) -> Dataset:
    """Add the embedding of its text or image to each row of a dataset, with the bits of one process.

    Parameters
    ----------
    dataset : ray.data.Dataset
        A dataset of any source with a column of texts or images.
    model : path, or name of a model
        As for `SentenceEncoder.from_pretrained`. This call reads it once, to report errors, and each actor reads it
        from the same place.
    kind : {"text", "image", "sparse"}, default "text"
        The class of the model: `SentenceEncoder`, `ImageEncoder` or `SparseEncoder`.
    column : str, optional
        The column of texts, by default "text"; or of images, by default "image": paths, from the working directory of
        this process, or the bytes of files.
    output_column : str, optional
        The new column: a tensor of float32 [E] in each row. Default: "embedding". Sparse embeddings have two columns
        instead, "indices" and "values": lists of int32, ascending, and of float32.
    prompt_name, prompt, truncate_dim, normalize
        As for `SentenceEncoder.encode`; for sparse embeddings the prompts alone.
    task, max_active_dims
        As for `SparseEncoder.encode`, for sparse embeddings alone.
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
    model_kind = kind_of_model("embed", kind)
    if output_column is not None and kind == SPARSE:
        raise ValueError(f"embed: output_column must be None for kind={SPARSE!r}; got {shown(output_column)}")
    column = model_kind.column if column is None else column
    outputs = SPARSE_COLUMNS if kind == SPARSE else ("embedding" if output_column is None else output_column,)
    for name, given in (("column", column), ("output_column", outputs[0])):
        if not isinstance(given, str):
            raise TypeError(f"embed: {name} must be a str; got {shown(given)}")
    schema = dataset.schema(fetch_if_missing=False)
    if schema is not None:
        _check_columns(schema.names, column, outputs)
    num_cpus = checked_integer("embed", "num_cpus", num_cpus, 1)
    batch_size = checked_integer("embed", "batch_size", batch_size, 1)
    compute = actor_pool("embed", concurrency, num_cpus, 1)
    loading = {"dtype": dtype, "weight_dtype": weight_dtype}
    options = {
        "prompt_name": prompt_name, "prompt": prompt, "truncate_dim": truncate_dim, "normalize": normalize,
        "task": task, "max_active_dims": max_active_dims,
    }  # fmt: skip
    arguments = model_arguments("embed", model, loading, options, num_cpus, kind)
    return dataset.map_batches(
        _Embedding,
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=compute,
        num_cpus=num_cpus,
        fn_constructor_kwargs=arguments | {"column": column, "outputs": outputs, "root": os.getcwd()},
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
    kind: str = TEXT,
) -> dict[str, Any]:
    """Return the arguments of a `ModelActor`, after reading the model with them. Errors name `function`.

    Options that are None are left out. Raises ValueError for an option that the kind of model does not have.
    """
    chosen = kind_of_model(function, kind)
    options = {name: value for name, value in options.items() if value is not None}
    if others := options.keys() - set(chosen.options):
        raise ValueError(f"{function}: {min(others)} must be None for kind={kind!r}")
    with in_the_name_of(function):
        chosen.model.from_pretrained(model, **loading).encode_batches([], **options)
    place = str(Path(model).resolve()) if Path(model).exists() else str(model)  # actors run in folders of their own
    given = {"model": place, "loading": loading, "options": options, "kind": kind}
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
        kind: str = TEXT,
        root: str = "",
    ) -> None:
        if version != _core.__version__:
            raise RuntimeError(f"embed: an actor has mha_native {_core.__version__}, and its caller has {version}")
        os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # the tokenizer reads it at its first text
        set_num_threads(num_threads)
        use_isa(isa)
        self._model = KINDS[kind].model.from_pretrained(model, **loading)
        self._options, self._root, self._has_images = options, root, kind == IMAGE

    def encode(self, inputs: list[Any]) -> NDArray[np.float32] | SparseEmbeddings:
        """Return the embeddings of N texts or images: float32 [N, E], or sparse ones."""
        given = [self._image(i, each) for i, each in enumerate(inputs)] if self._has_images else inputs
        found: NDArray[np.float32] | SparseEmbeddings = self._model.encode(given, **self._options)
        return found

    def _image(self, index: int, given: object) -> str | BytesIO:
        """Return an image of a column for a model: the path of a file, or a file object of its bytes."""
        if isinstance(given, bytes):
            return BytesIO(given)
        if not isinstance(given, str):
            raise TypeError(f"ModelActor.encode: images must be str or bytes; got {name_of_type(given)} at {index}")
        return os.path.join(self._root, given)


def sparse_columns(found: SparseEmbeddings) -> dict[str, Any]:
    """Return sparse embeddings as columns of pyarrow: lists of indices, and of values."""
    import pyarrow

    offsets = pyarrow.array(found.offsets.astype(np.int32))
    lists = (pyarrow.ListArray.from_arrays(offsets, pyarrow.array(part)) for part in (found.indices, found.values))
    return dict(zip(SPARSE_COLUMNS, lists, strict=True))


class _Embedding(ModelActor):
    """An actor that adds embeddings to batches of rows."""

    def __init__(self, column: str, outputs: tuple[str, ...], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._column, self._outputs = column, outputs

    def __call__(self, batch: Any) -> Any:
        """Return `batch`, a pyarrow.Table, with the columns of embeddings."""
        from ray.data.extensions import ArrowTensorArray

        _check_columns(batch.column_names, self._column, self._outputs)
        inputs, named = batch.column(self._column).to_pylist(), f"column {shown(self._column)}"
        with in_the_name_of("embed", texts=named, images=named):
            found = self.encode(inputs)
        if isinstance(found, SparseEmbeddings):
            for name, array in sparse_columns(found).items():
                batch = batch.append_column(name, array)
            return batch
        return batch.append_column(self._outputs[0], ArrowTensorArray.from_numpy(found))


def ray_data(function: str) -> Any:
    """Return the module ray.data; ImportError without it."""
    try:
        import ray.data
    except ImportError as error:
        command = pip_install("ray[data]", extra="ray")
        raise ImportError(f"{function}: {error.name} is not installed: {command}") from error
    return ray.data


def _check_columns(names: list[str], column: str, outputs: tuple[str, ...]) -> None:
    if column not in names:
        raise ValueError(f"embed: column must be one of the dataset, {listed(names)}; got {shown(column)}")
    if old := [name for name in outputs if name in names]:
        raise ValueError(f"embed: output_column must be a new one; the dataset has {shown(old[0])} already")
