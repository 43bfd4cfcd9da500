"""The models in the local cache of Hugging Face: their kinds, their sizes, and whether they are supported.

Only configurations and the headers of weights are read, by the functions that open a model.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..functions.messages import shown
from ..models.architecture.family import (
    EMBEDDING,
    GENERATION,
    IMAGES,
    SPEECH_TO_TEXT,
    TEXT_TO_TEXT,
    TEXTS_OF_IMAGES,
)
from ..models.architecture.open import OpenModel, open_model
from ..models.architecture.registry import families_of
from ..models.files.checkpoint import Checkpoint
from ..models.files.ctranslate2 import is_ctranslate2
from ..models.files.folder import FolderSource
from ..models.files.gguf.file import GGUFFile
from ..models.files.gguf.source import GGUFSource
from ..models.files.gguf_names import find_gguf, gguf_files
from ..models.files.hub_cache import FOLDER_PREFIX, snapshot_folder, weights_in
from ..models.files.json_files import read_json, require_file
from ..models.files.language_files import read_end_tokens
from ..models.files.late_interaction import read_late_interaction
from ..models.files.modules_json import (
    SparseModules,
    first_transformer,
    lists_sparse,
    read_image_modules,
    read_modules,
    read_sparse_modules,
    read_transformer,
)
from ..models.files.sentence_files import read_image_modalities, read_sentence_config
from ..models.files.source import Source
from ..models.files.special_tokens import read_special_tokens
from ..models.files.speech_files import SpeechSettings, check_spectrogram, speech_in
from ..models.heads.classification import TEXTS, TOKENS, head_of
from ..models.heads.dense import DenseConfig
from ..models.heads.embedding import read_head
from ..models.heads.images import image_head_of, label_head_of, task_of
from ..models.heads.labels import read_labels
from ..models.heads.masked_language import masked_head_of
from ..models.heads.token_vectors import inline_shapes, read_token_steps
from ..models.image_encoder import open_images
from ..models.kinds import (
    CLASSIFIER,
    EMBEDDINGS,
    ENCODER_DECODER,
    IMAGE_CLASSIFIER,
    IMAGE_EMBEDDINGS,
    IMAGE_TEXT_EMBEDDINGS,
    LANGUAGE,
    MULTI_VECTOR,
    SPARSE,
    SPEECH,
    TOKEN_CLASSIFIER,
    kind_of,
)
from ..models.multi_vector_encoder import read_late_settings
from ..models.text.prompts import read_settings


class CachedModel(NamedTuple):
    """One model in the cache. It is supported unless there is a `reason`."""

    name: str  # as --model takes it
    family: str | None  # model_type of config.json
    kind: str | None
    bytes: int  # on disk
    reason: str | None
    needs: tuple[str, ...] = ()  # packages


class _Kind(NamedTuple):
    """The role of a kind of models, and the check of their files."""

    role: str
    check: Callable[[Path, Path], None]  # of the folder of a model, and the folder of its transformer
    needs: tuple[str, ...] = ("tokenizers",)  # packages


def cached_models(cache: Path) -> Iterator[CachedModel]:
    """Yield the models in a cache by their names. A damaged one has a reason, and does not end the list."""
    for folder in sorted(cache.iterdir()):
        if folder.name.startswith(FOLDER_PREFIX) and folder.is_dir():
            yield from _models_in(folder, folder.name.removeprefix(FOLDER_PREFIX).replace("--", "/"))


def _models_in(folder: Path, name: str) -> Iterator[CachedModel]:
    """Yield the model in `folder`, or each of its GGUF files as a model."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    home = snapshot_folder(folder)
    is_partial = any((folder / "blobs").glob("*.incomplete"))
    if home is None:
        reason = "a download is incomplete" if is_partial else "the branch main is not here"
        yield CachedModel(name, None, None, size, reason)
        return
    files = gguf_files(home)
    for path in files:
        size -= path.stat().st_size
        yield _described(_name_of_file(name, path), path, path.stat().st_size, _describe_file)
    if weights_in(home) or not files:
        found = _described(name, home, size, _describe_folder)
        if found.reason is not None and is_partial:
            found = found._replace(reason=f"a download is incomplete: {found.reason}")
        yield found


def _name_of_file(repository: str, path: Path) -> str:
    """Return a name of a GGUF file: the last word of its own name, if no other file has it."""
    word = path.stem.replace(".", "-").rpartition("-")[2]
    with contextlib.suppress(OSError, ValueError):
        if find_gguf(f"{repository}:{word}") == path:
            return f"{repository}:{word}"
    return f"{repository}:{path.name}"


def _described(name: str, path: Path, size: int, describe: Callable[[Path, dict[str, Any]], None]) -> CachedModel:
    """Return the entry of a model. `describe` fills a dict with its properties, and raises if it is unsupported."""
    found: dict[str, Any] = {"family": None, "kind": None, "reason": None}
    try:
        describe(path, found)
    except Exception as error:  # of any kind: other programs fill the cache, and each model must have its line
        message = next(iter(str(error).splitlines()), type(error).__name__)
        found |= {"reason": message.replace(f"{path}/", "").replace(f"{path}", path.name), "needs": ()}
    return CachedModel(name, bytes=size, **found)


def _describe_file(path: Path, found: dict[str, Any]) -> None:
    with GGUFFile(path) as file:
        sizes: dict[str, int] = {}
        for entry in file.entries.values():
            sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.end - entry.begin
        most = max(sizes, key=sizes.__getitem__, default="")
        found |= {"family": file.metadata.get("general.architecture"), "kind": f"GGUF {most}".strip()}
    source = GGUFSource(path)
    found |= {"family": source.config["model_type"], "needs": _packages(source)}
    _check_language_model(source)


def _describe_folder(home: Path, found: dict[str, Any]) -> None:
    is_sparse, modules = lists_sparse(home), read_image_modules(home)
    if is_sparse:
        folder = _sparse_modules(home).transformer
    else:
        folder = modules[0].folder if modules else first_transformer(home)
    config = speech_in(home).config if is_ctranslate2(home) else read_json(folder / "config.json", dict)
    family = str(config.get("model_type"))
    name = SPARSE if is_sparse else kind_of(home, config)
    found |= {"family": family, "kind": name}
    kind = None if name is None else _KINDS[name]
    if kind is None or family not in families_of(kind.role):
        raise ValueError(f"the family {shown(family)} is unsupported")
    found["needs"] = _packages(FolderSource(folder)) if kind.role == GENERATION else kind.needs
    kind.check(home, folder)


def _check_embedding(home: Path, folder: Path) -> None:
    modules = read_modules(home)
    if len(modules) > 1:
        read_settings(home)
    opened = _encoder(folder, len(modules) > 1, "feature-extraction")
    _check_steps(read_head(modules, opened.config.embed_dim).steps)
    with opened.tensors():
        pass


def _check_steps(steps: Iterable[DenseConfig | None]) -> None:
    for step in steps:
        if step is not None:
            with Checkpoint(step.folder, step.tensor_shapes().items()):
                pass


def _sparse_modules(home: Path) -> SparseModules:
    return read_sparse_modules(home) or SparseModules(home, home, {})


def _check_sparse(home: Path, folder: Path) -> None:
    read_settings(home, "SparseEncoder")
    opened = _encoder(folder, True, "fill-mask")
    for words in _sparse_modules(home).words.values():
        require_file(words / "tokenizer.json")
    with opened.tensors(masked_head_of(opened).tensor_shapes()):
        pass


def _check_multi_vector(home: Path, folder: Path) -> None:
    files = read_late_interaction(home)
    read_late_settings(home, files)
    opened = open_model(FolderSource(folder), EMBEDDING)
    require_file(folder / "tokenizer.json")
    width = opened.config.embed_dim
    _check_steps(read_token_steps(files.steps, width, files.normalize))
    with opened.tensors(inline_shapes(files.inline_features, width)):
        pass


def _check_classifier(home: Path, folder: Path, task: str) -> None:
    is_listed = read_transformer(home) is not None
    opened, path = _encoder(folder, is_listed, "sequence-classification"), folder / "config.json"
    labels = read_labels(path, task).names
    with opened.tensors(head_of(path, opened.family, task, opened.config.embed_dim, len(labels)).tensor_shapes()):
        pass


def _encoder(folder: Path, is_listed: bool, task: str) -> OpenModel:
    opened = open_model(FolderSource(folder), EMBEDDING)
    front_end = opened.config.tokens
    read_sentence_config(folder, front_end.max_positions or 0, is_listed, front_end.first_position, task)
    require_file(folder / "tokenizer.json")
    return opened


def _check_images(home: Path, folder: Path) -> None:
    opened, entries, _ = open_images(folder)
    if modules := read_image_modules(home):
        read_settings(home)
        read_image_modalities(folder, modules[0].kind == "CLIPModel")
    with opened.tensors(image_head_of(opened, entries).tensor_shapes()):
        pass


def _check_images_and_texts(home: Path, folder: Path) -> None:
    _check_images(home, folder)
    texts = open_model(FolderSource(folder), TEXTS_OF_IMAGES)
    require_file(folder / "tokenizer.json")
    with texts.tensors():
        pass


def _check_labels_of_images(home: Path, folder: Path) -> None:
    opened, *_ = open_images(folder)
    labels = read_labels(folder / "config.json", task_of(opened.source.config)).names
    with opened.tensors(label_head_of(opened, len(labels)).tensor_shapes()):
        pass


def _check_text_to_text(home: Path, folder: Path) -> None:
    source = FolderSource(folder)
    opened = open_model(source, TEXT_TO_TEXT)
    read_special_tokens(source, opened.family.defaults, opened.config.vocab_size)
    if not opened.family.text_files:
        require_file(folder / "tokenizer.json")
    with opened.tensors():
        pass


def _check_speech(home: Path, folder: Path) -> None:
    source = speech_in(home)
    opened = open_model(source, SPEECH_TO_TEXT)
    check_spectrogram(source, opened.config)
    SpeechSettings(source, opened.config)
    with opened.tensors():
        pass


def _check_language_folder(home: Path, folder: Path) -> None:
    require_file(home / "tokenizer.json")
    _check_language_model(FolderSource(home))


def _check_language_model(source: Source) -> None:
    opened = open_model(source, GENERATION)
    read_end_tokens(source, opened.config.vocab_size)
    with opened.tensors():
        pass


def _packages(source: Source) -> tuple[str, ...]:
    return ("tokenizers",) if source.chat_template is None else ("tokenizers", "jinja2")


_KINDS = {
    EMBEDDINGS: _Kind(EMBEDDING, _check_embedding),
    SPARSE: _Kind(EMBEDDING, _check_sparse),
    MULTI_VECTOR: _Kind(EMBEDDING, _check_multi_vector),
    LANGUAGE: _Kind(GENERATION, _check_language_folder),
    ENCODER_DECODER: _Kind(TEXT_TO_TEXT, _check_text_to_text),
    CLASSIFIER: _Kind(EMBEDDING, partial(_check_classifier, task=TEXTS)),
    TOKEN_CLASSIFIER: _Kind(EMBEDDING, partial(_check_classifier, task=TOKENS)),
    SPEECH: _Kind(SPEECH_TO_TEXT, _check_speech),
    IMAGE_EMBEDDINGS: _Kind(IMAGES, _check_images, ("Pillow",)),
    IMAGE_TEXT_EMBEDDINGS: _Kind(IMAGES, _check_images_and_texts, ("tokenizers", "Pillow")),
    IMAGE_CLASSIFIER: _Kind(IMAGES, _check_labels_of_images, ("Pillow",)),
}
