"""The tokenizer in a GGUF file."""

from typing import Any

from ....functions.messages import shown
from ...text.tokenizer import library_errors
from ..entries import Entries
from .byte_level import adds_bos, build_byte_level
from .config import read_token
from .file import GGUFFile
from .sentence_pieces import build_sentence_pieces
from .vocabulary import Vocabulary

_PREFIX = "tokenizer.ggml."

# Known entries of the tokenizer, in addition to the numbers of tokens in special roles.
_KNOWN = (
    "model", "pre", "tokens", "scores", "token_type", "token_type_count", "merges", "add_bos_token", "add_eos_token",
    "add_sep_token", "add_space_prefix", "remove_extra_whitespaces",
)  # fmt: skip

# Special tokens of Phi-3 take the spaces after them, except for these. Only the name of the model says that it is one.
_PHI3 = ("phi-3", "phi3")
_LEAVE_SPACES = ("<unk>", "<s>", "<|endoftext|>")

# The supported kinds of models.
_BYTE_LEVEL, _SENTENCE_PIECES = "gpt2", "llama"


def build_tokenizer(file: GGUFFile) -> Any:
    """Return the ``tokenizers.Tokenizer``, without padding and truncation."""
    from tokenizers import AddedToken, processors  # type: ignore[import-not-found, unused-ignore]

    own = {name: value for name, value in file.metadata.items() if name.startswith(_PREFIX)}
    known = [_PREFIX + name for name in _KNOWN]
    entries = Entries(file.path, own)
    entries.refuse_others([*known, *(name for name in own if name.endswith("_token_id"))])
    entries.expect({_PREFIX + "add_sep_token": False})
    build = build_byte_level if _model(file) == _BYTE_LEVEL else build_sentence_pieces
    vocabulary = Vocabulary(file)
    with library_errors(f"{file.path} has no valid tokenizer"):
        tokenizer = build(file, vocabulary)
        takes_spaces = any(name in str(file.metadata.get("general.name")).lower() for name in _PHI3)
        for tokens, add in (vocabulary.special, tokenizer.add_special_tokens), (vocabulary.whole, tokenizer.add_tokens):
            add(
                [
                    AddedToken(token, normalized=False, rstrip=takes_spaces and token not in _LEAVE_SPACES)
                    for token in tokens
                ]
            )
        before = _added(file, vocabulary, "bos", _adds_bos(file))
        behind = _added(file, vocabulary, "eos", _adds_eos(file))
        if before or behind:
            one, other = ([*(f"{token}:{i}" for token, _ in before), f"${'AB'[i]}:{i}"] for i in (0, 1))
            end = [f"{token}:0" for token, _ in behind]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[*one, *end], pair=[*one, *end, *other, *end], special_tokens=[*before, *behind]
            )
    return tokenizer


def read_tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    """Return the entries of an equivalent tokenizer_config.json."""
    config: dict[str, Any] = {"add_bos_token": _adds_bos(file), "add_eos_token": _adds_eos(file)}
    tokens = file.metadata.get(_PREFIX + "tokens")
    for name, role in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = read_token(file, role)
        if number is not None and isinstance(tokens, list):
            config[f"{name}_token"] = tokens[number]
    return config


def read_chat_template(file: GGUFFile) -> str | None:
    """Return the chat template, in Jinja, or None."""
    template = file.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ValueError(f"{file.path}: tokenizer.chat_template must be a text; got {shown(template)}")
    return template


def _model(file: GGUFFile) -> str:
    model: str = file.settings.choice(_PREFIX + "model", _BYTE_LEVEL, _SENTENCE_PIECES)
    return model


def _adds_bos(file: GGUFFile) -> bool:
    default = _model(file) == _SENTENCE_PIECES or adds_bos(file)  # without an entry in the file
    return file.settings.flag(_PREFIX + "add_bos_token", default)


def _adds_eos(file: GGUFFile) -> bool:
    return file.settings.flag(_PREFIX + "add_eos_token")


def _added(file: GGUFFile, vocabulary: Vocabulary, role: str, is_added: bool) -> list[tuple[str, int]]:
    """Return the token that is added to every text in this role, with its number: one pair, or an empty list."""
    number = read_token(file, role) if is_added else None
    if is_added and number is None:
        raise ValueError(f"{file.path}: {_PREFIX}{role}_token_id must be there where add_{role}_token is true")
    return [] if number is None else [(vocabulary.tokens[number], number)]
