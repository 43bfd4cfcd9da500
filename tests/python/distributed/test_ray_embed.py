"""`mha_native.distributed.ray.embed`: the bits of one process, whatever actors do, and errors in the caller's words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
import tiny_sparse
from tolerance import assert_same_bits

from mha_native.distributed import ray as distributed_ray
from mha_native.distributed.ray import embed
from mha_native.interop._sparse_embedder import rows_of
from mha_native.models import ImageEncoder, SentenceEncoder, SparseEncoder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray")

parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"{text} {'the dog ' * (i % 3)}" for i in range(20) for text in tiny_bert.TEXTS]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write(tmp_path_factory.mktemp("ray") / "model")


def _dataset(ray: Any, blocks: int = 8) -> Any:
    rows = [{"number": i, "text": text} for i, text in enumerate(TEXTS)]
    return ray.data.from_items(rows, override_num_blocks=blocks)


def _rows(dataset: Any) -> np.ndarray[Any, Any]:
    """The embeddings in the order of the texts, each of which is there once."""
    batches = list(dataset.iter_batches(batch_size=None, batch_format="numpy"))
    numbers = np.concatenate([batch["number"] for batch in batches])
    assert sorted(numbers.tolist()) == list(range(len(TEXTS)))
    return np.concatenate([batch["embedding"] for batch in batches])[np.argsort(numbers)]


@pytest.mark.parametrize(("concurrency", "batch_size"), [(1, 1024), (2, 7)])
def test_the_bits_are_those_of_one_process(cluster: Any, directory: Path, concurrency: int, batch_size: int) -> None:
    result = embed(_dataset(cluster), directory, concurrency=concurrency, batch_size=batch_size)
    assert_same_bits(_rows(result), SentenceEncoder.from_pretrained(directory).encode(TEXTS))


def test_options_are_those_of_the_model(cluster: Any, directory: Path, tmp_path: Path) -> None:
    given = _dataset(cluster).rename_columns({"text": "words"})
    result = embed(
        given, directory, column="words", output_column="v", prompt="the ", truncate_dim=8, normalize=True,
        weight_dtype="int8", num_cpus=1,
    )  # fmt: skip
    result.write_parquet(str(tmp_path / "out"))
    written = parquet.read_table(tmp_path / "out").sort_by("number")
    assert written.column_names == ["number", "words", "v"]
    model = SentenceEncoder.from_pretrained(directory, weight_dtype="int8")
    rows = np.array(written.column("v").to_pylist(), np.float32)
    assert_same_bits(rows, model.encode(TEXTS, prompt="the ", truncate_dim=8, normalize=True))


def test_a_killed_actor_changes_nothing(
    cluster: Any, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = str(tmp_path / "was killed")

    class Mortal:  # pickled by value, since it is local; in the process of an actor nothing is patched
        def __init__(self, **arguments: Any) -> None:
            self.embedding, self.count = distributed_ray._Embedding(**arguments), 0

        def __call__(self, batch: Any) -> Any:
            self.count += 1
            if self.count == 3 and not os.path.exists(marker):
                open(marker, "x").close()
                os._exit(1)
            return self.embedding(batch)

    monkeypatch.setattr(distributed_ray, "_Embedding", Mortal)
    result = _rows(embed(_dataset(cluster), directory, concurrency=1, batch_size=20))
    assert os.path.exists(marker)
    assert_same_bits(result, SentenceEncoder.from_pretrained(directory).encode(TEXTS))


def test_a_text_that_is_none_is_named(cluster: Any, directory: Path) -> None:
    rows = cluster.data.from_items([{"text": "the dog"}, {"text": None}, {"text": "the cat"}])
    with pytest.raises(cluster.exceptions.RayTaskError, match="embed: column 'text' must be str; got NoneType at 1"):
        embed(rows, directory, concurrency=1).take_all()


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"dataset": [1]}, TypeError, r"embed: dataset must be a ray\.data\.Dataset; got list"),
        ({"column": 3}, TypeError, r"embed: column must be a str; got 3"),
        ({"column": "words"}, ValueError, r"embed: column must be one of the dataset, number, text; got 'words'"),
        ({"output_column": "text"}, ValueError, r"embed: output_column must be a new one; the dataset has 'text'"),
        ({"concurrency": 0}, ValueError, r"embed: concurrency must be at least 1; got 0"),
        ({"num_cpus": True}, TypeError, r"embed: num_cpus "),
        ({"batch_size": 0}, ValueError, r"embed: batch_size must be at least 1; got 0"),
        ({"model": "/nowhere"}, FileNotFoundError, r"/nowhere"),
        ({"model": 3}, TypeError, r"embed: model must be a path or a name; got 3"),
        ({"dtype": "garbage"}, TypeError, r"embed: dtype .*'garbage'"),
        ({"prompt_name": "nonsense"}, ValueError, r"embed: prompt_name .*'nonsense'"),
        ({"normalize": 3}, TypeError, r"embed: normalize .*3"),
        ({"kind": "sound"}, ValueError, r"embed: kind must be one of 'text', 'image', 'sparse'; got 'sound'"),
        ({"task": "query"}, ValueError, r"embed: task must be None for kind='text'"),
        (
            {"kind": "sparse", "output_column": "v"},
            ValueError,
            r"output_column must be None for kind='sparse'; got 'v'",
        ),
        ({"truncate_dim": 0}, ValueError, r"embed: truncate_dim .*0"),
    ],
)
def test_messages(cluster: Any, directory: Path, changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    arguments = {"dataset": _dataset(cluster, 1), "model": directory} | changes
    with pytest.raises(kind, match=message):
        embed(**arguments)


def test_an_actor_of_another_version_is_refused(directory: Path) -> None:
    arguments = distributed_ray.model_arguments("embed", directory, {}, {}, 1)
    with pytest.raises(RuntimeError, match=r"embed: an actor has mha_native .*, and its caller has 0\.0"):
        distributed_ray.ModelActor(**arguments | {"version": "0.0"})


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ImportError, match=r'embed: ray(\.data)? is not installed: pip install "ray\[data\]"'):
        embed([], "model")  # type: ignore[arg-type]


@pytest.mark.parametrize(("concurrency", "batch_size"), [(1, 1024), (2, 7)])
def test_sparse_embeddings_are_two_columns(
    cluster: Any, tmp_path_factory: pytest.TempPathFactory, concurrency: int, batch_size: int
) -> None:
    folder = tiny_sparse.write_files(tmp_path_factory.mktemp("sparse"))
    options: dict[str, Any] = {"max_active_dims": 5, "task": "document"}
    result = embed(_dataset(cluster), folder, kind="sparse", concurrency=concurrency, batch_size=batch_size, **options)
    rows = sorted(result.take_all(), key=lambda row: row["number"])
    expected = SparseEncoder.from_pretrained(folder).encode(TEXTS, **options)
    assert [(list(row["indices"]), list(row["values"])) for row in rows] == rows_of(expected)


def test_images_are_paths_or_bytes(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("torch")
    from saved_image_models import save_vit

    rng, folder = np.random.default_rng(0), save_vit(tmp_path / "vit")
    for i in range(5):
        image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    paths = [f"{i}.png" for i in range(5)]
    expected = ImageEncoder.from_pretrained(folder).encode(paths)
    for of_row in (str, lambda path: Path(path).read_bytes()):
        items = [{"number": i, "image": of_row(path)} for i, path in enumerate(paths)]
        given = cluster.data.from_items(items, override_num_blocks=2)
        rows = sorted(embed(given, folder, kind="image", batch_size=2).take_all(), key=lambda row: row["number"])
        assert_same_bits(np.stack([row["embedding"] for row in rows]), expected)
    with pytest.raises(cluster.exceptions.RayTaskError, match=r"embed: column 'image' must be .*NoneType at 0"):
        embed(cluster.data.from_items([{"image": None}]), folder, kind="image", concurrency=1).take_all()
