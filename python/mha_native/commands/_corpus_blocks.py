"""Blocks of the files of a corpus, the same in each run, and the texts or images in a block."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

from ..functions.messages import listed
from ..models.text.prompts import is_text
from .errors import UserError, errors_of_files, reason
from .input_images import image_files
from .input_texts import object_in, text_in, without_ending

# Largest block: some minutes of one thread with a small model, the most that a killed run loses.
BLOCK_BYTES = 4 << 20
BLOCK_ROWS = 1 << 15
BLOCK_IMAGES = 256

BATCH_ROWS = 1024  # rows in memory at once

KINDS = (".txt", ".jsonl", ".parquet")
IMAGES = "images"  # stands for the images of a corpus, as one file with a row for each


@dataclass(frozen=True)
class Block:
    """A part of a file. A file with another size or time has other blocks."""

    file: str  # its path inside the folder of the corpus, with slashes
    index: int  # the number of the block in its file, from 0
    first: int  # to `end`: the bytes in which its lines begin, or the rows of a Parquet file
    end: int
    size: int  # bytes of the whole file
    modified: int  # when the file was changed, in nanoseconds; of images a checksum of names, sizes and times

    @property
    def output(self) -> str:
        """The path of its embeddings inside the folder of the output."""
        return f"{self.file}-{self.index:05}.parquet"

    def is_source_of(self, entry: Mapping[str, Any]) -> bool:
        """Return whether an entry of the manifest describes this block of the unchanged file."""
        return all(entry.get(name) == value for name, value in asdict(self).items())


def blocks_of(folder: Path) -> list[Block]:
    """Return the blocks of all files below `folder`; names that begin with a dot or an underscore are skipped."""
    try:
        paths = sorted(path for path in folder.rglob("*") if not path.is_dir() and _is_shown(path.relative_to(folder)))
        blocks = [block for path in paths for block in _blocks_in(folder, path)]
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {reason(error)}") from error
    if not blocks:
        raise UserError(f"--input must be a folder with texts in files {', '.join(KINDS)}; {folder} has none")
    return blocks


def image_blocks_of(folder: Path) -> list[Block]:
    """Return the blocks of all images below `folder`, in the order of their paths."""
    if not folder.is_dir():
        raise UserError(f"--images must be a folder with --ray; got {folder}")
    files, blocks = _images_in(folder), []
    with errors_of_files("read", folder):
        for index, first in enumerate(range(0, len(files), BLOCK_IMAGES)):
            some = files[first : first + BLOCK_IMAGES]
            found = [(name, (folder / name).stat()) for name in some]
            states = [(name, status.st_size, status.st_mtime_ns) for name, status in found]
            size, state = sum(status.st_size for _, status in found), crc32(repr(states).encode())
            blocks.append(Block(IMAGES, index, first, first + len(some), size, state))
    return blocks


def batches_of(folder: Path, block: Block, column: str) -> Iterator[tuple[Any, int]]:
    """Yield the rows of a block in tables of pyarrow, each with the number of rows that are not valid UTF-8."""
    path = folder / block.file
    with errors_of_files("read", path):
        if block.file == IMAGES:
            import pyarrow

            yield pyarrow.table({column: _images_in(folder)[block.first : block.end]}), 0
        else:
            yield from (_parquet_rows if path.suffix == ".parquet" else _lines)(path, block, column)


def _images_in(folder: Path) -> list[str]:
    """Return the paths of images below a folder, inside it."""
    names = [os.path.relpath(file, folder) for file in image_files(str(folder))]
    if (name := next((name for name in names if not is_text(name)), None)) is not None:
        raise UserError(f"--images: names of files must be UTF-8; got {name!r}")
    return names


def _is_shown(path: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.parts)


def _blocks_in(folder: Path, path: Path) -> Iterator[Block]:
    if path.suffix not in KINDS:
        raise UserError(f"--input must hold files {', '.join(KINDS)} alone; got {path}")
    status = path.stat()
    if path.suffix == ".parquet":
        cuts = [*range(0, _rows_of(path), BLOCK_ROWS), _rows_of(path)]
    else:
        cuts = [*range(0, status.st_size, BLOCK_BYTES), status.st_size]
    name = path.relative_to(folder).as_posix()
    for index, (first, end) in enumerate(pairwise(cuts)):
        yield Block(name, index, first, end, status.st_size, status.st_mtime_ns)


def _rows_of(path: Path) -> int:
    import pyarrow
    from pyarrow.parquet import read_metadata

    try:
        return int(read_metadata(path).num_rows)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path} is no valid Parquet file: {error}") from error


def _parquet_rows(path: Path, block: Block, column: str) -> Iterator[tuple[Any, int]]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise UserError(f"{path} has no column {column}; it has {listed(file.schema_arrow.names)}")
            at, groups = _groups_of(file.metadata, block)
            for batch in file.iter_batches(BATCH_ROWS, row_groups=groups):
                first, end = max(block.first - at, 0), min(block.end - at, len(batch))
                if first < end:
                    yield pyarrow.Table.from_batches([batch.slice(first, end - first)]), 0
                at += len(batch)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path} is no valid Parquet file: {error}") from error


def _groups_of(metadata: Any, block: Block) -> tuple[int, list[int]]:
    """Return the first row of the first row group that overlaps a block, and the numbers of all such groups."""
    begin = at = 0
    groups: list[int] = []
    for group in range(metadata.num_row_groups):
        end = at + metadata.row_group(group).num_rows
        if at < block.end and end > block.first:
            begin = begin if groups else at
            groups.append(group)
        at = end
    return begin, groups


def _lines(path: Path, block: Block, column: str) -> Iterator[tuple[Any, int]]:
    import pyarrow

    texts: list[str] = []
    damaged = 0
    with path.open("rb") as file:
        if block.first:
            file.seek(block.first - 1)
            file.readline()  # the end of the line before
        while (at := file.tell()) < block.end:
            raw = without_ending(file.readline(), at == 0)
            text = raw.decode(errors="replace")
            damaged += text.encode() != raw
            texts.append(text if path.suffix == ".txt" else _text_of(text, column, path, at))
            if len(texts) == BATCH_ROWS:
                yield pyarrow.table({column: texts}), damaged
                texts, damaged = [], 0
    if texts:
        yield pyarrow.table({column: texts}), damaged


def _text_of(line: str, column: str, path: Path, at: int) -> str:
    try:
        return text_in(object_in(line), column)
    except UserError as error:
        raise UserError(f"{path}, the line at byte {at:,}: {error}") from error
