"""The command ``embed --ray``: the embeddings of a folder of files, by a pool of actors of Ray."""

import argparse
import contextlib
import hashlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core
from ..distributed.ray import IMAGE, SPARSE, TEXT, ModelActor, actor_pool, model_arguments, ray_data, sparse_columns
from ..functions.messages import in_the_name_of
from ..functions.progress import Progress
from ..models import SparseEmbeddings
from ..models.files.hub_cache import find_directory
from ..models.images.sources import pillow
from ._corpus_blocks import Block, batches_of, blocks_of, image_blocks_of
from ._manifest import Manifest, only_run, sha256_of
from .errors import UserError, complain, errors_of_files
from .model_calls import loaded
from .output import PARTIAL_FILES, Array, report, written
from .shared_arguments import formats_of

EMBEDDING = "embedding"  # the column that is added

# Settings of Ray: no usage statistics, and errors as sentences of this command.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}


def run(options: argparse.Namespace) -> None:
    """Embed the texts in all files below the folder `input`: each block of a file becomes a file below `output`. Or
    embed the images below the folder `images`, some to a file.

    Blocks that an earlier run finished with the same model and options stay. After a failure finished blocks stay, and
    partial files are removed.
    """
    os.environ.update({name: value for name, value in _ENVIRONMENT.items() if name not in os.environ})
    loaded(lambda: ray_data("embed"))
    kind = SPARSE if options.sparse else TEXT if options.images is None else IMAGE
    folder, target = Path(options.images[0] if kind == IMAGE else options.input), Path(options.output)
    model, num_cpus = options.model, options.num_cpus
    column = "image" if kind == IMAGE else options.column
    names = ("prompt_name", "prompt", *(("task", "max_active_dims") if options.sparse else ()))
    given = {name: getattr(options, name) for name in names}
    if kind == IMAGE:
        loaded(lambda: pillow("embed"))
        if (loaded(lambda: find_directory(model)) / "modules.json").exists():
            raise UserError(f"--ray --images needs a model in the files of transformers; {model} has a modules.json")
    blocks = (image_blocks_of if kind == IMAGE else blocks_of)(folder)
    _make_folder(folder, target)
    with only_run(target), _no_partial_files(target):
        arguments = loaded(lambda: model_arguments("embed", model, formats_of(options), given, num_cpus, kind))
        manifest = _opened_manifest(target, blocks, _made_with(model, arguments, given, column))
        arguments |= {"folder": str(folder.resolve()), "output": str(target.resolve()), "column": column}
        done = sum(block.output in manifest.entries for block in blocks)
        pending = [block for block in blocks if block.output not in manifest.entries]
        progress = Progress()
        try:
            for count, entry in enumerate(_computed(pending, arguments, options.concurrency, num_cpus), done + 1):
                manifest.add(entry)
                progress.show(count / len(blocks), sum(made["rows"] for made in manifest.entries.values()))
        finally:
            progress.clear()
        _report([manifest.entries[block.output] for block in blocks], done, options.output)


class BlockWriter(ModelActor):
    """An actor that writes the embeddings of each block to a file."""

    def __init__(self, folder: str, output: str, column: str, **arguments: Any) -> None:
        super().__init__(**arguments, root=folder)
        self._folder, self._output, self._column = Path(folder), Path(output), column

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Embed a block and return its entry in the manifest; ``error`` is empty after success."""
        block = Block(**row)
        path = self._output / block.output
        entry: dict[str, Any] = asdict(block) | {"output": block.output, "error": ""}
        entry |= {"rows": 0, "damaged": 0, "not_finite": 0, "bytes": 0, "sha256": ""}
        try:
            with contextlib.suppress(OSError):  # `written` reports the reason
                path.parent.mkdir(parents=True, exist_ok=True)
            self._write(block, path, entry)
            return entry | {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        except UserError as error:
            return entry | {"error": str(error)}

    def _write(self, block: Block, path: Path, counts: dict[str, Any]) -> None:
        from pyarrow.parquet import ParquetWriter

        with written(str(path)) as file, contextlib.ExitStack() as stack:
            writer: Any = None
            for table, numbers, damaged in self._embedded(block):
                if writer is None:
                    writer = stack.enter_context(ParquetWriter(file, table.schema, use_dictionary=False))
                writer.write_table(table)
                counts["rows"] += len(table)
                counts["damaged"] += damaged
                counts["not_finite"] += _not_finite(numbers)

    def _embedded(self, block: Block) -> Iterator[tuple[Any, Array | SparseEmbeddings, int]]:
        """Yield tables with their embeddings, which are also columns, and the number of damaged rows."""
        import pyarrow

        # No line begins in a block in the middle of a long line.
        none = pyarrow.table({self._column: pyarrow.array([], pyarrow.string())})
        batches = batches_of(self._folder, block, self._column)
        count = 0
        for table, damaged in chain([next(batches, (none, 0))], batches):
            try:
                where = f"{self._folder / block.file}, block {block.index}, after {count:,} rows"
                with in_the_name_of(where, texts=f"column {self._column}"):
                    found = self.encode(table.column(self._column).to_pylist())
            except (TypeError, ValueError, OSError) as error:
                raise UserError(str(error)) from error
            for name, values in _columns(found).items():
                if name in table.column_names:
                    raise UserError(f"{self._folder / block.file} has a column {name} already")
                table = table.append_column(name, values)
            yield table, found, damaged
            count += len(table)


def _columns(found: Array | SparseEmbeddings) -> dict[str, Any]:
    """Return embeddings as columns of pyarrow."""
    import pyarrow

    if isinstance(found, SparseEmbeddings):
        return sparse_columns(found)
    return {EMBEDDING: pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(found.ravel()), found.shape[1])}


def _not_finite(found: Array | SparseEmbeddings) -> int:
    """Return how many embeddings have a number that is not finite."""
    if isinstance(found, SparseEmbeddings):
        texts = np.repeat(np.arange(found.num_texts), np.diff(found.offsets))
        return len(np.unique(texts[~np.isfinite(found.values)]))
    return int((~np.isfinite(found).all(axis=1)).sum())


def _make_folder(folder: Path, target: Path) -> None:
    if target.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"--output must be a folder outside of --input; got {target}")
    with errors_of_files("write", target):
        target.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _no_partial_files(target: Path) -> Iterator[None]:
    """Remove partial files of killed actors, left by an earlier run or by this one."""
    try:
        _remove_partial_files(target)
        yield
    finally:
        _remove_partial_files(target)


def _remove_partial_files(target: Path) -> None:
    for path in target.rglob(PARTIAL_FILES):
        path.unlink(missing_ok=True)


def _made_with(model: str, arguments: Mapping[str, Any], options: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return everything that determines the bytes of embeddings, for the manifest."""
    folder = find_directory(model)
    total = hashlib.sha256()
    for path in sorted((*folder.rglob("*.json"), *folder.rglob("*.safetensors"))):
        total.update(f"{path.relative_to(folder).as_posix()} {sha256_of(path)}\n".encode())
    build = {"mha_native": _core.__version__, "isa": arguments["isa"]}
    kind = {} if arguments["kind"] == TEXT else {"kind": arguments["kind"]}  # outputs of older versions stay
    return {**build, "model": total.hexdigest(), "column": column, **arguments["loading"], **options, **kind}


def _opened_manifest(target: Path, blocks: list[Block], made_with: Mapping[str, Any]) -> Manifest:
    """Open the manifest and remove outputs of files that have changed."""
    manifest = Manifest(target, made_with)
    files, by_output = {block.file for block in blocks}, {block.output: block for block in blocks}
    for name, entry in list(manifest.entries.items()):
        block = by_output.get(name)
        if entry.get("file") in files and not (block is not None and block.is_source_of(entry)):
            manifest.remove(name)
    manifest.write()
    return manifest


def _computed(
    blocks: list[Block], arguments: Mapping[str, Any], concurrency: int | None, num_cpus: int
) -> Iterator[dict[str, Any]]:
    """Yield the entries of finished blocks, in any order."""
    if not blocks:
        return
    import ray

    with _cluster(ray):
        rows = ray.data.from_items([asdict(block) for block in blocks], override_num_blocks=len(blocks))
        pool = actor_pool("embed", concurrency, num_cpus, 0)  # actors read and write files themselves
        entries = rows.map(BlockWriter, compute=pool, num_cpus=num_cpus, fn_constructor_kwargs=dict(arguments))
        try:
            for entry in entries.iter_rows():
                if error := entry.pop("error"):
                    raise UserError(error)
                yield entry
        except ray.exceptions.RayError as error:
            raise UserError(f"Ray: {str(error).strip().splitlines()[-1]}") from error


@contextlib.contextmanager
def _cluster(ray: Any) -> Iterator[None]:
    """Use the running cluster, or start one on this machine for the context. Signal handlers stay as they were."""
    if ray.is_initialized():
        yield
        return
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    if is_main:
        signal.signal(signal.SIGTERM, before)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _report(entries: list[Mapping[str, Any]], done: int, output: str) -> None:
    rows, damaged, bad = (sum(entry[name] for entry in entries) for name in ("rows", "damaged", "not_finite"))
    if damaged:
        complain(f"{damaged:,} texts are not UTF-8; U+FFFD stands in for what cannot be read")
    if bad:
        complain(f"{bad:,} embeddings are not finite")
    already = f", {done:,} of them from before" if done else ""
    report(output, f"{rows:,} embeddings in {len(entries):,} files{already}")
