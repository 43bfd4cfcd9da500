"""``python -m mha_native embed --ray``: every row once and with the same bytes, whatever is killed, cut off or full."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert
import tiny_images
import tiny_sparse
from command_line import assert_refused, run
from tolerance import assert_same_bits

from mha_native.commands import _corpus_blocks, embed_corpus
from mha_native.commands._corpus_blocks import batches_of, blocks_of
from mha_native.commands._manifest import NAME, only_run
from mha_native.commands.embed_corpus import BlockWriter
from mha_native.commands.errors import UserError
from mha_native.commands.input_texts import opened
from mha_native.distributed.ray import model_arguments
from mha_native.interop._sparse_embedder import rows_of
from mha_native.models import ImageEncoder, SentenceEncoder, SparseEncoder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray")

parquet = pytest.importorskip("pyarrow.parquet")
pyarrow = pytest.importorskip("pyarrow")

Array = np.ndarray[Any, Any]
TEXTS = [f"{text} {i}" for i in range(15) for text in tiny_bert.TEXTS]  # 120


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_bert.write(tmp_path_factory.mktemp("corpus") / "model"))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files of several blocks each, one of them in a folder."""
    monkeypatch.setattr(_corpus_blocks, "BLOCK_BYTES", 700)
    monkeypatch.setattr(_corpus_blocks, "BLOCK_ROWS", 50)
    folder = tmp_path / "corpus"
    (folder / "more").mkdir(parents=True)
    (folder / "a.txt").write_text("\n".join(TEXTS) + "\n")
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in TEXTS))
    table = pyarrow.table({"id": range(len(TEXTS)), "text": TEXTS})
    parquet.write_table(table, folder / "more" / "c.parquet", row_group_size=35)
    (folder / "_SUCCESS").touch()
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "a.txt").write_text("not this")
    return folder


def _embed(capsys: pytest.CaptureFixture[str], directory: str, corpus: Path, *further: str) -> tuple[int, str, str]:
    places = ["--input", str(corpus), "--output", str(corpus.with_name("out"))]
    return run(capsys, "embed", "--ray", "--model", directory, *places, *further)


def _files(folder: Path) -> dict[str, bytes]:
    """What is in the folder, but the manifest, whose lines have the order in which blocks were finished."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != NAME]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _assert_complete(output: Path, directory: str) -> None:
    """Every text of the three files is there once, in order, with the bits of one process."""
    expected = SentenceEncoder.from_pretrained(directory).encode(TEXTS)
    for name in ("a.txt", "b.jsonl", "more/c.parquet"):
        parts = sorted(output.glob(f"{name}-*"))
        assert len(parts) > 2
        tables = [parquet.read_table(part) for part in parts]
        assert [text for table in tables for text in table.column("text").to_pylist()] == TEXTS
        rows = np.concatenate([np.array(table.column("embedding").to_pylist(), np.float32) for table in tables])
        assert_same_bits(rows, expected)
    ids = [i for part in sorted(output.glob("more/c.parquet-*")) for i in parquet.read_table(part)["id"].to_pylist()]
    assert ids == list(range(len(TEXTS)))


@pytest.fixture
def whole(cluster: Any, directory: str, corpus: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The output of a run that nothing disturbed."""
    code, out, _ = _embed(capsys, directory, corpus)
    output = corpus.with_name("out")
    assert (code, out) == (0, f"360 embeddings in {len(_files(output))} files: {output}\n")
    _assert_complete(output, directory)
    return output


def test_a_run_goes_on_where_it_was(
    whole: Path, directory: str, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _files(whole)
    manifest = whole / NAME
    lost, cut, foreign, kept, unsaid = sorted(before)[:5]
    (whole / lost).unlink()
    (whole / cut).write_bytes(before[cut][:-1])
    (whole / foreign).write_bytes(b"x" * len(before[foreign]))
    lines = [line for line in manifest.read_text().splitlines() if f'"{unsaid}"' not in line]
    manifest.write_text("\n".join(lines) + '\n{"output": "a.t')  # killed as it wrote this
    (whole / "more" / ".mha_native.0123456789abcdef.partial").write_bytes(b"half")
    stamps = {name: (whole / name).stat().st_ino for name in before if name != lost}

    code, out, _ = _embed(capsys, directory, corpus, "--concurrency", "2")
    assert (code, out) == (
        0,
        f"360 embeddings in {len(before)} files, {len(before) - 4} of them from before: {whole}\n",
    )
    assert _files(whole) == before
    assert (whole / kept).stat().st_ino == stamps[kept]
    entries = [json.loads(line) for line in manifest.read_text().splitlines()[1:]]
    assert sorted(entry["output"] for entry in entries) == sorted(before)
    assert sum(entry["rows"] for entry in entries) == 360

    (corpus / "b.jsonl").write_text('{"text": "the dog"}\n')  # fewer blocks, and other ones
    code, out, _ = _embed(capsys, directory, corpus)
    assert code == 0
    assert [path.name for path in whole.glob("b.*")] == ["b.jsonl-00000.parquet"]
    assert parquet.read_table(whole / "b.jsonl-00000.parquet")["text"].to_pylist() == ["the dog"]


def test_a_killed_actor_changes_nothing(
    cluster: Any, directory: str, corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, output = str(corpus.with_name("was killed")), corpus.with_name("out")

    class Mortal:  # pickled by value, since it is local; in the process of an actor nothing is patched
        def __init__(self, **arguments: Any) -> None:
            self.writer, self.count = BlockWriter(**arguments), 0

        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            self.count += 1
            if self.count == 3 and not os.path.exists(marker):
                open(marker, "x").close()
                (output / ".mha_native.fedcba9876543210.partial").write_bytes(b"half")
                os._exit(1)
            return self.writer(row)

    monkeypatch.setattr(embed_corpus, "BlockWriter", Mortal)
    code, _, err = _embed(capsys, directory, corpus, "--concurrency", "1")
    assert code == 0, err
    assert os.path.exists(marker)
    _assert_complete(output, directory)
    assert all(name.endswith(".parquet") for name in _files(output))


def test_what_cannot_be_written_is_said_and_the_rest_stays(
    cluster: Any, directory: str, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = corpus.with_name("out")
    (output / "more" / "c.parquet-00002.parquet").mkdir(parents=True)
    code, out, err = _embed(capsys, directory, corpus, "--concurrency", "1")
    assert (code, out) == (2, "")
    assert f"cannot write {output}/more/c.parquet-00002.parquet: it is a directory" in err
    (output / "more" / "c.parquet-00002.parquet").rmdir()
    code, out, _ = _embed(capsys, directory, corpus, "--concurrency", "1")
    assert code == 0
    assert " of them from before" in out
    _assert_complete(output, directory)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may become larger than 1,000 bytes, as if the disk were full."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def _writer(directory: str, corpus: Path) -> BlockWriter:
    places = {"folder": str(corpus), "output": str(corpus.with_name("out")), "column": "text"}
    return BlockWriter(**places, **model_arguments("embed", directory, {}, {}, 1))


def _fields(block: Any) -> dict[str, Any]:
    return dict(vars(block))


def test_a_full_disk_leaves_nothing(directory: str, corpus: Path, small_files: None) -> None:
    entry = _writer(directory, corpus)(_fields(blocks_of(corpus)[0]))
    output = corpus.with_name("out")
    assert entry["error"] == f"cannot write {output}/a.txt-00000.parquet: File too large"
    assert list(output.iterdir()) == []


@pytest.mark.parametrize("part", range(4))
def test_embeddings_do_not_depend_on_the_cuts(
    part: int, directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(part)
    path = tmp_path / "corpus" / "a.txt"
    path.parent.mkdir()
    writer = _writer(directory, path.parent)
    for _ in range(50):
        words = [str(rng.choice(tiny_bert.TEXTS)) + str(rng.choice(["", "é", " 😀", "\x85"])) for _ in range(12)]
        ending = str(rng.choice(["\n", "\r\n"]))
        mark = str(rng.choice(["", "\ufeff"]))
        path.write_bytes((mark + ending.join(words) + ending * int(rng.integers(2))).encode())
        monkeypatch.setattr(_corpus_blocks, "BLOCK_BYTES", int(rng.integers(1, 200)))
        monkeypatch.setattr(_corpus_blocks, "BATCH_ROWS", int(rng.integers(1, 9)))
        with opened([], str(path)) as lines:
            expected = list(lines)
        found = [each for block in blocks_of(path.parent) for each in writer._embedded(block)]
        assert [text for table, _, _ in found for text in table["text"].to_pylist()] == expected
        assert_same_bits(np.concatenate([rows for _, rows, _ in found]), writer.encode(expected))


def test_rows_of_parquet_do_not_depend_on_the_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    texts = [str(i) for i in range(60)]
    for _ in range(30):
        parquet.write_table(
            pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=int(rng.integers(1, 70))
        )
        monkeypatch.setattr(_corpus_blocks, "BLOCK_ROWS", int(rng.integers(1, 70)))
        monkeypatch.setattr(_corpus_blocks, "BATCH_ROWS", int(rng.integers(1, 20)))
        batches = [table for block in blocks_of(tmp_path) for table, _ in batches_of(tmp_path, block, "text")]
        assert [text for table in batches for text in table["text"].to_pylist()] == texts


def test_what_is_not_utf8_is_counted(directory: str, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_bytes(b"dog\n\xff cat\n")
    entry = _writer(directory, tmp_path / "corpus")(_fields(blocks_of(tmp_path / "corpus")[0]))
    assert (entry["error"], entry["rows"], entry["damaged"]) == ("", 2, 1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "dog"}\nno\n', "a.jsonl, the line at byte 16: no valid JSON"),
        ("a.jsonl", b'{"words": "dog"}\n', "a.jsonl, the line at byte 0: text must be a text; got nothing"),
    ],
)
def test_bad_lines_are_named(name: str, content: bytes, words: str, directory: str, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / name).write_bytes(content)
    entry = _writer(directory, tmp_path / "corpus")(_fields(blocks_of(tmp_path / "corpus")[0]))
    assert words in entry["error"]


def test_a_column_of_numbers_is_refused(directory: str, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    parquet.write_table(pyarrow.table({"text": [1, 2]}), tmp_path / "corpus" / "a.parquet")
    writer = _writer(directory, tmp_path / "corpus")
    (block,) = blocks_of(tmp_path / "corpus")
    assert "a.parquet, block 0, after 0 rows: column text must be str; got int at 0" in writer(_fields(block))["error"]
    parquet.write_table(pyarrow.table({"words": ["dog"]}), tmp_path / "corpus" / "a.parquet")
    assert "a.parquet has no column text; it has words" in writer(_fields(block))["error"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "--input must be a folder with texts in files .txt, .jsonl, .parquet"),
        (lambda folder: (folder / "a.csv").touch(), "--input must hold files .txt, .jsonl, .parquet alone; got "),
        (lambda folder: (folder / "a.parquet").write_bytes(b"PAR1"), "a.parquet is no valid Parquet file"),
    ],
)
def test_a_folder_that_is_none_of_texts(
    make: Any, words: str, directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray.data")
    (tmp_path / "corpus").mkdir()
    make(tmp_path / "corpus")
    assert_refused(*_embed(capsys, directory, tmp_path / "corpus"), words)
    assert not (tmp_path / "out").exists()


def test_other_options_are_refused(
    directory: str, corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.data")

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(embed_corpus, "_computed", interrupted)  # nothing has been computed, and all has been said
    assert _embed(capsys, directory, corpus)[0] == 130
    refused = _embed(capsys, directory, corpus, "--prompt", "the", "--dtype", "bfloat16")
    assert_refused(*refused, "holds embeddings of another run: dtype 'float32', not 'bfloat16', prompt None, not 'the'")
    inside = ["--input", str(corpus), "--output", str(corpus / "out")]
    assert_refused(*run(capsys, "embed", "--ray", "--model", directory, *inside), "--output must be a folder outside")
    (corpus.with_name("out") / NAME).write_text("[]")
    assert_refused(*_embed(capsys, directory, corpus), f"{NAME} is no manifest of embeddings")


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with only_run(tmp_path), pytest.raises(UserError, match="another run writes to"), only_run(tmp_path):
        pass
    with only_run(tmp_path):
        pass


@pytest.mark.parametrize("arguments", [["--ray", "dog"], ["--input", "x"], ["--ray", "--input", "x"]])
def test_options_go_together(arguments: list[str], directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "embed", "--model", directory, *arguments)
    assert "--ray, --input and --output go together" in capsys.readouterr().err


def test_sparse_embeddings_are_two_columns(
    cluster: Any, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tiny_sparse.write_files(tmp_path / "sparse"))
    options = ("--sparse", "--task", "document", "--max-active-dims", "5")
    code, _, error = _embed(capsys, folder, corpus, *options)
    assert code == 0, error
    output, texts = corpus.with_name("out"), TEXTS
    expected = rows_of(SparseEncoder.from_pretrained(folder).encode(texts, task="document", max_active_dims=5))
    for name in ("a.txt", "b.jsonl", "more/c.parquet"):
        parts = [parquet.read_table(path) for path in sorted(output.glob(f"{name}-*"))]
        columns = [pyarrow.concat_tables(parts).column(which).to_pylist() for which in ("indices", "values")]
        assert list(zip(*columns, strict=True)) == expected
    first = _files(output)
    assert _embed(capsys, folder, corpus, *options)[0] == 0  # goes on where it was: at the end
    assert _files(output) == first
    code, _, error = _embed(capsys, folder, corpus, *options[:-1], "6")
    assert code != 0
    assert "max_active_dims" in error


def test_images_of_a_folder(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors of one process, in blocks of images; another run computes the blocks that have changed."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(_corpus_blocks, "BLOCK_IMAGES", 2)
    model, folder, output = tmp_path / "vit", tmp_path / "images", tmp_path / "out"
    tiny_images.write(model, tiny_images.config("vit"))
    (folder / "below").mkdir(parents=True)
    names = ["a.png", "b.png", "below/c.png", "d.png", "e.png"]
    rng = np.random.default_rng(0)
    for i, name in enumerate(names):
        image.fromarray(rng.integers(0, 256, (30 + i, 40, 3), dtype=np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("no image")

    def embed(*further: str, images: tuple[Path, ...] = (folder,)) -> tuple[int, str, str]:
        places = ["--images", *map(str, images), "--output", str(output)]
        return run(capsys, "embed", "--ray", "--model", str(model), *places, *further)

    code, out, error = embed()
    assert (code, out) == (0, f"5 embeddings in 3 files: {output}\n"), error
    table = pyarrow.concat_tables([parquet.read_table(path) for path in sorted(output.glob("*.parquet"))])
    assert table["image"].to_pylist() == names
    expected = ImageEncoder.from_pretrained(model).encode([folder / name for name in names])
    assert_same_bits(np.array(table["embedding"].to_pylist(), np.float32), expected)
    image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(folder / "e.png")
    code, out, _ = embed()
    assert (code, out) == (0, f"5 embeddings in 3 files, 2 of them from before: {output}\n")
    last = parquet.read_table(output / "images-00002.parquet")["embedding"].to_pylist()
    assert_same_bits(np.float32(last), ImageEncoder.from_pretrained(model).encode([folder / "e.png"]))
    (folder / "b.png").write_bytes(b"none")
    code, _, error = embed()
    assert code == 2
    assert f"{folder / 'images'}, block 0, after 0 rows: " in error
    assert str(folder / "b.png") in error
    assert_refused(*embed(images=(folder / "a.png",)), "--images must be a folder with --ray; got ")
    (model / "modules.json").write_text("[]")
    assert_refused(*embed(), "--ray --images needs a model in the files of transformers")
    for further, images in (((), (folder, folder)), (("--column", "x"), (folder,))):
        with pytest.raises(SystemExit):
            embed(*further, images=images)
        assert "--ray takes one folder of --images, without --column" in capsys.readouterr().err
