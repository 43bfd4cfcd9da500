"""What tokenizer_config.json and tokenizer.json both say, and must agree on.

Some classes of transformers make a tokenizer of the words in tokenizer.json and the settings in tokenizer_config.json.
Here tokenizer.json is all that counts, and a model whose files differ is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...functions.messages import shown

# What tokenizer_config.json calls a property of the normalizer of BERT, and the classes for which it counts.
_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_BERT_CLASSES = (None, "BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer")

# Whatever tokenizer.json says, these classes split words of at most so many characters, into pieces that begin like
# this inside of a word.
_WORD_PIECES = ("##", 100)

# Whether a blank is put before a text where tokenizer_config.json does not say so, by class.
_PREFIX_SPACE = {
    "RobertaTokenizer": False,
    "XLMRobertaTokenizer": True,
    "CamembertTokenizer": True,
    "Qwen2Tokenizer": False,
}
_NULL_IS_DEFAULT = ("Qwen2Tokenizer",)

# What a model gets of a tokenizer, of texts of different length.
_NEEDED = ["input_ids", "attention_mask"]

# What is put around a text, or in the place of what is not known.
_SPECIAL = ("bos_token", "cls_token", "eos_token", "sep_token", "unk_token", "pad_token", "mask_token")


def check_agreement(path: Path, library: Any, values: Mapping[str, Any]) -> None:
    """ValueError if tokenizer_config.json says something else than tokenizer.json, or what is not computed.

    Parameters
    ----------
    path : Path
        Of tokenizer_config.json.
    library : tokenizers.Tokenizer
    values
        What the file says; nothing if there is none.
    """
    from tokenizers import models, normalizers  # type: ignore[import-not-found, unused-ignore]

    side = values.get("truncation_side", library.truncation["direction"] if library.truncation else "right")
    if side != "right":
        raise ValueError(f"{path}: truncation_side must be 'right'; got {shown(side)}")
    names = values.get("model_input_names", _NEEDED)
    if not isinstance(names, list) or not all(name in names for name in _NEEDED):
        raise ValueError(f"{path}: model_input_names must be a list with {' and '.join(_NEEDED)}; got {shown(names)}")
    _check_special_tokens(path, library, values)
    name = values.get("tokenizer_class")
    kind = name.removesuffix("Fast") if isinstance(name, str) else None
    normalizer = library.normalizer
    if kind in _BERT_CLASSES and isinstance(normalizer, normalizers.BertNormalizer):
        for key, ours in _NORMALIZER.items():
            if key in values:
                _check_same(path, key, values[key], getattr(normalizer, ours), "normalizer")
    if kind in _BERT_CLASSES and isinstance(library.model, models.WordPiece):
        _check_word_pieces(path, library, values)
    adds_blank = _adds_blank(library)
    if kind in _PREFIX_SPACE and adds_blank is not None:
        given = values.get("add_prefix_space", _PREFIX_SPACE[kind])
        if given is None and kind in _NULL_IS_DEFAULT:
            given = _PREFIX_SPACE[kind]
        _check_same(path, "add_prefix_space", given, adds_blank, "pre-tokenizer")


def _check_same(path: Path, key: str, given: object, expected: object, part: str) -> None:
    if given is not expected:
        raise ValueError(
            f"{path}: {key} must be {expected}, as the {part} of tokenizer.json has it; got {shown(given)}"
        )


def _check_word_pieces(path: Path, library: Any, values: Mapping[str, Any]) -> None:
    """ValueError unless tokenizer.json has the steps that a class of BERT makes without it."""
    from tokenizers import normalizers, pre_tokenizers

    model = library.model
    first, last = (_content(values.get(key)) for key in ("cls_token", "sep_token"))
    text = library.encode("a", add_special_tokens=False).ids
    whole = [library.token_to_id(first or ""), *text, library.token_to_id(last or "")]
    are_usual = {
        "normalizer": isinstance(library.normalizer, normalizers.BertNormalizer),
        "pre_tokenizer": isinstance(library.pre_tokenizer, pre_tokenizers.BertPreTokenizer),
        "model": (model.continuing_subword_prefix, model.max_input_chars_per_word) == _WORD_PIECES,
        "post_processor": None in (first, last) or (text and library.encode("a").ids == whole),
    }
    for part, is_usual in are_usual.items():
        if not is_usual:
            name = values.get("tokenizer_class") or "BERT"
            raise ValueError(f"{path.with_name('tokenizer.json')}: {part} must be that of {name}, as {path.name} says")


def _content(token: Any) -> Any:
    """The text of a special token in tokenizer_config.json, where it is a str or an object."""
    return token.get("content") if isinstance(token, dict) else token


def _check_special_tokens(path: Path, library: Any, values: Mapping[str, Any]) -> None:
    from tokenizers import models

    needs_unknown = isinstance(library.model, models.Unigram)  # of which transformers takes another one if it is null
    special = {token.content for token in library.get_added_tokens_decoder().values() if token.special}
    for key in _SPECIAL:
        given = values.get(key)
        token = _content(given)
        if token is None and not (needs_unknown and key == "unk_token" and key in values):
            continue
        if not isinstance(token, str) or library.token_to_id(token) is None or token not in special:
            raise ValueError(f"{path}: {key} must be a special token of tokenizer.json; got {shown(given)}")


def _adds_blank(library: Any) -> bool | None:
    """Whether the pre-tokenizer puts a blank before a text; None for one that does not know of it."""
    state = json.loads(library.pre_tokenizer.__getstate__()) if library.pre_tokenizer is not None else {}
    for part in (state, *state.get("pretokenizers", ())):
        if part.get("type") == "ByteLevel":
            return bool(part["add_prefix_space"])
        if part.get("type") == "Metaspace":
            return bool(part["prepend_scheme"] != "never")
    return None
