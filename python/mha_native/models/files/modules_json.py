"""modules.json of sentence-transformers: the steps from a text to its embedding, each with its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...functions.messages import listed, shown
from .entries import Entries
from .json_files import is_below, read_json
from .sentence_files import reads_images

# Prefixes of the types of known modules. Modules with other code compute something else.
_AUTHORS = (
    "sentence_transformers.",
    "mha_native.sentence_transformers.",
    "mha_native.interop.sentence_transformers.",  # its former place
    "pylate.models.",
)

_BEHIND_POOLING = ("Dense", "Normalize")
_SPLADE = (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"])  # the latter is the older name

# Modules that can be in the folder of the whole model.
_FIRST = ("Transformer", "MLMTransformer", "StaticEmbedding", "CLIPModel")

_MOST_MODULES = 32  # models have up to five


class Module(NamedTuple):
    """One step from a text to its embedding."""

    kind: str  # "Transformer", "StaticEmbedding", "Pooling", "Dense" or "Normalize"
    folder: Path


def read_modules(directory: Path) -> list[Module]:
    """Return the modules of the model in `directory`: a Transformer and a Pooling, or a StaticEmbedding; then any Dense
    and Normalize.

    Without modules.json the directory holds a model of model2vec, if config.json says so; else a plain transformer, as
    in sentence-transformers. It is then the only module, and other files of sentence-transformers have no effect.

    Raises OSError or ValueError if modules.json cannot be read, lists other modules, or a folder that is not below
    `directory`.
    """
    path = directory / "modules.json"
    if not path.exists():
        return _of_model2vec(directory) or [Module("Transformer", directory)]
    entries = _entries(path)
    kinds = [kind for kind, _ in entries]
    first = 1 if kinds[:1] == ["StaticEmbedding"] else 2
    has_others = first == 2 and kinds[:2] != ["Transformer", "Pooling"]
    has_others = has_others or not set(kinds[first:]) <= set(_BEHIND_POOLING)
    if has_others or len(kinds) > _MOST_MODULES:
        raise ValueError(
            f"{path} must list Transformer, Pooling and perhaps Dense or Normalize, or StaticEmbedding in place of the "
            f"first two, as sentence-transformers has them; got {listed(kinds) or 'nothing'}"
        )
    return [_module(path, kind, entry) for kind, entry in entries]


def read_image_modules(directory: Path) -> list[Module] | None:
    """Return the modules of a model of images in `directory`: a CLIPModel, or a Transformer that reads images, and any
    modules after it; None for other models, and without modules.json.

    Raises the errors of `read_modules`.
    """
    path = directory / "modules.json"
    if not path.exists():
        return None
    entries = _entries(path)
    kinds = [kind for kind, _ in entries]
    first = _module(path, *entries[0]) if kinds and kinds[0] in ("CLIPModel", "Transformer") else None
    if first is None or not (first.kind == "CLIPModel" or reads_images(first.folder)):
        return None
    if not set(kinds[1:]) <= {"Pooling", *_BEHIND_POOLING} or "Pooling" in kinds[2:] or len(kinds) > _MOST_MODULES:
        raise ValueError(
            f"{path} must list CLIPModel or Transformer, and perhaps Pooling, Dense or Normalize, for a model of "
            f"images; got {listed(kinds)}"
        )
    return [first, *(_module(path, kind, entry) for kind, entry in entries[1:])]


def _of_model2vec(directory: Path) -> list[Module]:
    """Return the modules of a model that older versions of model2vec have saved; nothing for another model."""
    path = directory / "config.json"
    values = read_json(path, dict) if path.exists() else {}
    if values.get("model_type") != "model2vec":
        return []
    ends = [Module("Normalize", directory / "1_Normalize")] if Entries(path, values).flag("normalize") else []
    return [Module("StaticEmbedding", directory), *ends]


def read_transformer(directory: Path) -> Module | None:
    """Return the only module of a modules.json, the Transformer of a CrossEncoder; None without that file.

    Raises the errors of `read_modules`.
    """
    path = directory / "modules.json"
    if not path.exists():
        return None
    entries = _entries(path)
    if [kind for kind, _ in entries] != ["Transformer"]:
        raise ValueError(
            f"{path} must list a Transformer alone, as sentence-transformers has it for a model with a "
            f"classifier; got {listed(kind for kind, _ in entries) or 'nothing'}"
        )
    return _module(path, *entries[0])


def read_logit_score(directory: Path) -> tuple[Path, Entries] | None:
    """Return the folder of the Transformer and the settings of the LogitScore after it, the modules of a CrossEncoder
    that is a language model; None for other modules, and without modules.json.

    Raises the errors of `read_modules`.
    """
    path = directory / "modules.json"
    entries = _entries(path) if path.exists() else []
    if [kind for kind, _ in entries] != ["Transformer", "LogitScore"]:
        return None
    transformer, score = (_module(path, *entry) for entry in entries)
    return transformer.folder, Entries.read(score.folder / "config.json")


class SparseModules(NamedTuple):
    """The modules of a SparseEncoder: a Transformer with a SpladePooling, and static words for some tasks."""

    transformer: Path
    pooling: Path
    words: Mapping[str, Path]  # folders of SparseStaticEmbedding, by the tasks whose texts they read
    tasks: tuple[str, ...] = ()  # of a Router; without one tasks have no effect
    default_task: str | None = None


def read_sparse_modules(directory: Path) -> SparseModules | None:
    """Return the modules of a SparseEncoder: Transformer and SpladePooling, or a Router to them for some tasks and to
    a SparseStaticEmbedding for others; None without modules.json.

    Raises the errors of `read_modules`.
    """
    path = directory / "modules.json"
    if not path.exists():
        return None
    entries = _entries(path)
    if [kind for kind, _ in entries] == ["Router"]:
        folder: Any = entries[0][1].get("path")
        if folder not in ("", ".") and not is_below(folder):
            raise ValueError(f"{path} must have the Router in its folder or below it; got {shown(folder)}")
        return _of_router(path.parent / folder)
    kinds = [kind for kind, _ in entries]
    if kinds not in _SPLADE:
        raise ValueError(
            f"{path} must list Transformer and SpladePooling, as sentence-transformers has them for a SparseEncoder, "
            f"or a Router; got {listed(kinds) or 'nothing'}"
        )
    transformer, pooling = (_module(path, *entry).folder for entry in entries)
    return SparseModules(transformer, pooling, {})


def lists_sparse(directory: Path) -> bool:
    """Return whether modules.json lists the modules of a SparseEncoder. The file can be missing."""
    kinds = kinds_listed(directory)
    return kinds == ["Router"] or kinds in _SPLADE


def kinds_listed(directory: Path) -> list[str]:
    """Return the kinds of the modules in modules.json; none without that file."""
    path = directory / "modules.json"
    return [kind for kind, _ in _entries(path)] if path.exists() else []


def _of_router(folder: Path) -> SparseModules:
    """Return the modules of a Router by its router_config.json, which has the modules of each task."""
    path = folder / "router_config.json"
    entries = Entries.read(path)
    entries.refuse_others(("types", "structure", "parameters"))
    types, structure, parameters = (_object(entries, name) for name in ("types", "structure", "parameters"))
    splade: list[tuple[Path, Path]] = []
    words: dict[str, Path] = {}
    for task, names in structure.items():
        if not isinstance(names, list) or not all(isinstance(name, str) and name in types for name in names):
            raise ValueError(f"{path}: structure must have lists of modules in types; got {shown(names)} for {task}")
        kinds = [_kind(types[name]) for name in names]
        if kinds not in (*_SPLADE, ["SparseStaticEmbedding"]):
            raise ValueError(
                f"{path} must have Transformer and SpladePooling, or SparseStaticEmbedding, for each task; got "
                f"{listed(kinds) or 'nothing'} for {task}"
            )
        folders = [_module(path, kind, {"path": name}).folder for kind, name in zip(kinds, names, strict=True)]
        if len(folders) == 1:
            words[task] = folders[0]
        else:
            splade.append((folders[0], folders[1]))
    if len(set(splade)) != 1:
        raise ValueError(f"{path} must have one Transformer with one SpladePooling; got {len(set(splade))}")
    given = Entries(path, parameters)
    given.refuse_others(("default_route", "allow_empty_key", "route_mappings"))
    given.refuse({"route_mappings": "tasks are the names of routes"})
    tasks = tuple(structure)
    default = parameters.get("default_route")
    if default is None:
        default = tasks[0] if given.flag("allow_empty_key", True) else None
    elif default not in tasks:
        raise ValueError(f"{path}: default_route must be one of {listed(tasks)}; got {shown(default)}")
    return SparseModules(*splade[0], words, tasks, default)


def _object(entries: Entries, name: str) -> dict[str, Any]:
    value = entries.values.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{entries.path}: {name} must be an object; got {shown(value)}")
    return value


def read_listed(directory: Path, first: str, others: tuple[str, ...], owner: str) -> list[Module]:
    """Return the modules of the modules.json of `owner`: one of kind `first`, and then any of `others`.

    Raises the errors of `read_modules`.
    """
    path = directory / "modules.json"
    entries = _entries(path)
    kinds = [kind for kind, _ in entries]
    if kinds[:1] != [first] or not set(kinds[1:]) <= set(others) or len(kinds) > _MOST_MODULES:
        raise ValueError(
            f"{path} must list {first} and perhaps {', '.join(others)}, as sentence-transformers has them for {owner}; "
            f"got {listed(kinds) or 'nothing'}"
        )
    return [_module(path, kind, entry) for kind, entry in entries]


def first_transformer(directory: Path) -> Path:
    """Return the folder of the Transformer, the first module of modules.json; `directory` without that file.

    Raises the errors of `read_modules`.
    """
    path = directory / "modules.json"
    if not path.exists():
        return directory
    entries = _entries(path)
    if not entries or entries[0][0] != "Transformer":
        found = listed(kind for kind, _ in entries) or "nothing"
        raise ValueError(f"{path} must list a Transformer first, as sentence-transformers has it; got {found}")
    return _module(path, *entries[0]).folder


def _entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and the entry of each module in the file."""
    entries = [entry if isinstance(entry, dict) else {} for entry in read_json(path, list)]
    return [(_kind(entry.get("type")), entry) for entry in entries]


def _module(path: Path, kind: str, entry: dict[str, Any]) -> Module:
    folder: Any = entry.get("path")
    is_here = kind in _FIRST and folder in ("", ".")
    if not is_here and not is_below(folder):
        raise ValueError(f"{path} must have the {kind} in a folder below it; got {shown(folder)}")
    return Module(kind, path.parent / folder)


def check_normalize(folder: Path, vectors: str = "sentence_embedding") -> None:
    """Refuse a Normalize that scales something other than `vectors`. Its configuration may be absent."""
    path = folder / "config.json"
    entries = Entries.read(path) if path.exists() else Entries(path, {})
    entries.choice("module_input_name", vectors, default="sentence_embedding")
    check_ends(entries, vectors)


def check_ends(entries: Entries, vectors: str = "sentence_embedding") -> None:
    """Refuse a module after the transformer that reads or returns something other than `vectors`: the embedding of a
    text, or "token_embeddings"."""
    entries.expect({"module_input_name": vectors})
    if entries.has("module_output_name"):
        entries.choice("module_output_name", vectors)


def _kind(name: object) -> str:
    """Return the last part of the type of a known module, or the whole type in quotes for an unknown module."""
    if isinstance(name, str) and name.startswith(_AUTHORS):
        return name.rpartition(".")[2]
    return repr(name)
