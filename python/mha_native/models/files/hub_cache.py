"""The directory of a model by its name: in the local cache of Hugging Face, or downloaded by huggingface_hub."""

import os
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from ...functions.messages import listed, shown
from ...functions.needed_packages import pip_install

# "organization/model", or a model of sentence-transformers. A path such as ./model or /models/model is neither.
_NAME = re.compile(r"(?:[A-Za-z0-9]\w*(?:[-.]\w+)*/)?[A-Za-z0-9]\w*(?:[-.]\w+)*", re.ASCII)
_LONGEST_NAME = 96  # characters of each part, as in huggingface_hub

_DEFAULT_ORGANIZATION = "sentence-transformers"

_WEIGHTS = (".safetensors", ".bin")  # the latter are refused with a separate message

FOLDER_PREFIX = "models--"  # of the folders of models in the cache, among folders of data sets

_COMMIT = re.compile(r"[0-9a-f]{40}")

# A branch, a tag, refs/pr/1 or a commit. No part of it leads out of the folder.
_REVISION = re.compile(r"(?!.*\.\.)\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)

# The files to download. A repository can also hold weights for other libraries.
_FILES = ["*.json", "*.jinja", "model*.safetensors", "*/model*.safetensors"]

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # True for the words of _YES
_YES = ("1", "ON", "YES", "TRUE")


def find_directory(
    name: str | PathLike[str],
    *,
    cache_folder: str | PathLike[str] | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
    token: bool | str | None = None,
    organization: str | None = _DEFAULT_ORGANIZATION,
    files: Sequence[str] = (),
) -> Path:
    """Return the directory `name`, or the directory of this model in the cache, downloaded there if necessary.

    Only a str that can be the name of a model is looked up in the cache. It is downloaded if huggingface_hub is
    installed and neither HF_HUB_OFFLINE nor TRANSFORMERS_OFFLINE is set, unless `local_files_only`. There is no other
    access to the network.

    `cache_folder` is the cache; default: the cache of Hugging Face. `revision` is a branch, a tag or a commit; default:
    the branch "main". `token` gives access to private models, as for huggingface_hub. `organization` is the one of a
    name without an organization; None: no organization. `files` are patterns of further files to download.

    Raises TypeError if `name` or `cache_folder` is not a path, ValueError if `revision` is not the name of a revision,
    FileNotFoundError if the model is not in the cache and cannot be downloaded, and OSError if the download fails.
    """
    try:
        directory = Path(name)
    except Exception as error:  # whatever the object raises
        raise TypeError(f"model must be a path or a name; got {shown(name)}") from error
    if not isinstance(name, str) or directory.exists() or not is_name(name):
        return directory
    repository = name if "/" in name or organization is None else f"{organization}/{name}"
    cache = hub_cache() if cache_folder is None else Path(cache_folder)
    if revision is not None and not (isinstance(revision, str) and _REVISION.fullmatch(revision)):
        raise ValueError(f"revision must be a branch, a tag or a commit; got {shown(revision)}")
    snapshot = snapshot_folder(repository_folder(repository, cache), revision or "main")
    if snapshot is not None and weights_in(snapshot):
        return snapshot
    what = repository if revision is None else f"revision {revision} of {repository}"
    where = f"the model {name} is not a directory, and {what} is not in the cache {cache}"
    if local_files_only:
        raise FileNotFoundError(f"{where}; it is not downloaded, since local_files_only is set")
    if any(os.environ.get(variable, "").upper() in _YES for variable in _OFFLINE):
        raise FileNotFoundError(f"{where}; it is not downloaded, since HF_HUB_OFFLINE is set")
    try:
        from huggingface_hub import snapshot_download  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise FileNotFoundError(f"{where}; {pip_install('huggingface_hub')} to download it") from None
    try:
        given = {"revision": revision, "token": token}
        options = {option: value for option, value in given.items() if value is not None}
        return Path(snapshot_download(repository, cache_dir=cache, allow_patterns=[*_FILES, *files], **options))
    except Exception as error:  # of the library, of its HTTP client, of the operating system
        reason = listed(str(error).splitlines()[:1]) or type(error).__name__
        raise OSError(f"{where}; it could not be downloaded: {reason}") from error


def is_name(name: str) -> bool:
    """Return whether `name` can be the name of a model, with or without an organization."""
    return _NAME.fullmatch(name) is not None and all(len(part) <= _LONGEST_NAME for part in name.split("/"))


def hub_cache() -> Path:
    """Return the folder of all models, as huggingface_hub finds it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if given := os.environ.get(variable):
            return Path(os.path.expandvars(given)).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def repository_folder(repository: str, cache: Path | None = None) -> Path:
    """Return the folder of a model in a cache; default: the cache of Hugging Face."""
    return (cache or hub_cache()) / f"{FOLDER_PREFIX}{repository.replace('/', '--')}"


def snapshot_folder(folder: Path, revision: str = "main") -> Path | None:
    """Return the folder of the files of a revision, in the folder of a model; None if there is none."""
    try:
        with open(folder / "refs" / revision, "rb") as file:
            commit = file.read(64).decode("ascii").strip()
    except (OSError, ValueError):
        commit = revision
    if not _COMMIT.fullmatch(commit):
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def weights_in(snapshot: Path) -> list[Path]:
    """Return the files of weights in a folder of the cache, and in the folders in it."""
    return [path for pattern in ("*", "*/*") for path in snapshot.glob(pattern) if path.suffix in _WEIGHTS]
