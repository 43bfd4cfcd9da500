"""Compare tokenizer_config.json with tokenizer.json.

Some classes of transformers build a tokenizer from the vocabulary in tokenizer.json and the settings in
tokenizer_config.json. Here only tokenizer.json counts, so a model with files that disagree is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...functions.messages import shown

# Properties of the normalizer of BERT, by their names in tokenizer_config.json, and the classes that read them.
_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_BERT_CLASSES = (None, "BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer")

# These classes ignore tokenizer.json for two values: the prefix of pieces inside a word, and the length in characters
# of the longest word that they split.
_WORD_PIECES = ("##", 100)

# Whether a class puts a blank before a text, if tokenizer_config.json does not say so.
_PREFIX_SPACE = {
    "RobertaTokenizer": False,
    "XLMRobertaTokenizer": True,
    "CamembertTokenizer": True,
    "Qwen2Tokenizer": False,
}
_NULL_IS_DEFAULT = ("Qwen2Tokenizer",)

# The outputs of a tokenizer that a model needs for texts of different lengths.
_NEEDED = ["input_ids", "attention_mask"]

# Special tokens: around a text, and for unknown words.
_SPECIAL = ("bos_token", "cls_token", "eos_token", "sep_token", "unk_token", "pad_token", "mask_token")


def check_agreement(path: Path, library: Any, values: Mapping[str, Any]) -> None:
    """Raise ValueError if tokenizer_config.json disagrees with tokenizer.json, or asks for an unsupported feature.

    `path` is the path of tokenizer_config.json, and `values` are its entries, which are empty if it is missing.
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
    """Raise ValueError unless tokenizer.json has the steps that the classes of BERT build themselves."""
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
    """Return the text of a special token in tokenizer_config.json, which is a str or an object."""
    return token.get("content") if isinstance(token, dict) else token


def _check_special_tokens(path: Path, library: Any, values: Mapping[str, Any]) -> None:
    from tokenizers import models

    needs_unknown = isinstance(library.model, models.Unigram)  # transformers takes another unknown token if it is null
    special = {token.content for token in library.get_added_tokens_decoder().values() if token.special}
    for key in _SPECIAL:
        given = values.get(key)
        token = _content(given)
        if token is None and not (needs_unknown and key == "unk_token" and key in values):
            continue
        if not isinstance(token, str) or library.token_to_id(token) is None or token not in special:
            raise ValueError(f"{path}: {key} must be a special token of tokenizer.json; got {shown(given)}")


def _adds_blank(library: Any) -> bool | None:
    """Return whether the pre-tokenizer puts a blank before a text; None if it has no such setting."""
    state = json.loads(library.pre_tokenizer.__getstate__()) if library.pre_tokenizer is not None else {}
    for part in (state, *state.get("pretokenizers", ())):
        if part.get("type") == "ByteLevel":
            return bool(part["add_prefix_space"])
        if part.get("type") == "Metaspace":
            return bool(part["prepend_scheme"] != "never")
    return None
