"""Compare tokenizer_config.json with tokenizer.json.

Some classes of transformers build a tokenizer from the vocabulary in tokenizer.json and the settings in
tokenizer_config.json. Here only tokenizer.json counts, so a model with files that disagree is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...functions.messages import shown
from ..files.json_files import read_json

# Properties of the normalizer of BERT, by their names in tokenizer_config.json, and the classes that read them.
_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_BERT_CLASSES = (None, "BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer")

# The class that transformers takes for a model_type where neither tokenizer_config.json nor config.json names one.
_CLASS_OF_FAMILY = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "nomic_bert": "BertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "bart": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "gte": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "electra": "BertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "mbart": "MBartTokenizer",
    "pegasus": "PegasusTokenizer",
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "clip": "CLIPTokenizer",
    "siglip": "SiglipTokenizer",
}

# The class of transformers that reads all of tokenizer.json.
_WHOLE_FILE = "PreTrainedTokenizerFast"


class _Parts(NamedTuple):
    """The parts of a tokenizer that a class of transformers builds itself, by their types in tokenizer.json."""

    model: str
    pre_tokenizers: tuple[tuple[str, ...], ...] = ()  # any of these sequences; (): any pre-tokenizer
    patterns: tuple[str, ...] = ()  # any of these regular expressions of a Split; (): any


_OF_BERT = _Parts("WordPiece", (("BertPreTokenizer",),))
_OF_ROBERTA = _Parts("BPE", (("ByteLevel",),))
_OF_XLM_ROBERTA = _Parts("Unigram", (("Metaspace",), ("WhitespaceSplit", "Metaspace")))
_QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# In files of before transformers 5 without the tokens around a text, which are split off before.
_CLIP_ENDS = r"<\|startoftext\|>|<\|endoftext\|>|"
_CLIP_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_PARTS = {
    "BertTokenizer": _OF_BERT,
    "DistilBertTokenizer": _OF_BERT,
    "MPNetTokenizer": _OF_BERT,
    "RobertaTokenizer": _OF_ROBERTA,
    "XLMRobertaTokenizer": _OF_XLM_ROBERTA,
    "CamembertTokenizer": _OF_XLM_ROBERTA,
    "AlbertTokenizer": _Parts("Unigram", (("WhitespaceSplit", "Metaspace"),)),
    "DebertaV2Tokenizer": _Parts("Unigram", (("Metaspace",), ("Punctuation", "Metaspace"))),
    "NllbTokenizer": _Parts("BPE", (("Metaspace",), ("WhitespaceSplit", "Metaspace"))),
    "Qwen2Tokenizer": _Parts("BPE", (("Split", "ByteLevel"),), (_QWEN2_PATTERN,)),
    "GemmaTokenizer": _Parts("BPE"),
    "MBartTokenizer": _Parts("Unigram"),
    "PegasusTokenizer": _Parts("Unigram"),
    "T5Tokenizer": _Parts("Unigram"),
    "CLIPTokenizer": _Parts("BPE", (("Split", "ByteLevel"),), (_CLIP_PATTERN, _CLIP_ENDS + _CLIP_PATTERN)),
    "SiglipTokenizer": _Parts("Unigram"),
    "Siglip2Tokenizer": _Parts("BPE"),
}

# Classes that turn letters into small ones, as tokenizer.json must.
_LOWERCASE = ("CLIPTokenizer", "SiglipTokenizer", "Siglip2Tokenizer")

# Settings with which a class adds a step to its normalizer or pre-tokenizer, or leaves it out: the step, the value that
# adds it, and the default.
_STEPS = {
    "AlbertTokenizer": {"do_lower_case": ("Lowercase", True, True), "keep_accents": ("StripAccents", False, False)},
    "DebertaV2Tokenizer": {
        "do_lower_case": ("Lowercase", True, False),
        "split_by_punct": ("Punctuation", True, False),
    },
}

# The language of texts by default, and its place among the tokens that are added to a text.
_LANGUAGE = {"NllbTokenizer": ("eng_Latn", 0), "MBartTokenizer": ("en_XX", -1)}

# These classes ignore tokenizer.json for two values: the prefix of pieces inside a word, and the length in characters
# of the longest word that they split.
_WORD_PIECES = ("##", 100)

# Whether a class puts a blank before a text, if tokenizer_config.json does not say so.
_PREFIX_SPACE = {
    "RobertaTokenizer": False,
    "XLMRobertaTokenizer": True,
    "CamembertTokenizer": True,
    "AlbertTokenizer": True,
    "DebertaV2Tokenizer": True,
    "Qwen2Tokenizer": False,
}
_NULL_IS_DEFAULT = ("Qwen2Tokenizer",)

# The outputs of a tokenizer that a model needs for texts of different lengths.
_NEEDED = ["input_ids", "attention_mask"]

# Special tokens: around a text, and for unknown words.
_SPECIAL = ("bos_token", "cls_token", "eos_token", "sep_token", "unk_token", "pad_token", "mask_token")


def class_of_tokenizer(folder: Path, values: Mapping[str, Any]) -> str | None:
    """Return the name of the class that transformers takes for the tokenizer in a folder, or None.

    `values` are the entries of tokenizer_config.json. Without ``tokenizer_class`` there, config.json counts: its own
    ``tokenizer_class``, or the class of its ``model_type``. ValueError for a name that is no string.
    """
    path = folder / "config.json"
    config = read_json(path, dict) if path.exists() else {}
    for place, entries in ((folder / "tokenizer_config.json", values), (path, config)):
        name = entries.get("tokenizer_class")
        if isinstance(name, str):
            return name
        if name is not None:
            raise ValueError(f"{place}: tokenizer_class must be a string; got {shown(name)}")
    model_type = config.get("model_type")
    return _CLASS_OF_FAMILY.get(model_type) if isinstance(model_type, str) else None


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
    name = class_of_tokenizer(path.parent, values)
    kind = None if name is None else name.removesuffix("Fast")
    if kind in _PARTS:
        _check_parts(path, library, kind, _PARTS[kind])
    normalizer = library.normalizer
    if kind in _BERT_CLASSES and isinstance(normalizer, normalizers.BertNormalizer):
        for key, ours in _NORMALIZER.items():
            if key in values:
                _check_same(path, key, values[key], getattr(normalizer, ours), "normalizer")
    steps = [step.get("type") for part in (normalizer, library.pre_tokenizer) for step in _steps_of(part)]
    if kind in _LOWERCASE and "Lowercase" not in steps:
        raise ValueError(
            f"{path.with_name('tokenizer.json')}: normalizer must have Lowercase, since {kind} of transformers has it"
        )
    for key, (step, adds, default) in _STEPS.get(kind or "", {}).items():
        _check_same(path, key, values.get(key, default), (step in steps) is adds, "text processing")
    if kind in _LANGUAGE:
        _check_language(path, library, values, *_LANGUAGE[kind])
    ends = [_content(values.get(key, default)) for key, default in (("cls_token", "[CLS]"), ("sep_token", "[SEP]"))]
    if kind in _STEPS and not (None not in ends and _has_ends(library, *ends)):
        raise ValueError(f"{path}: cls_token and sep_token must be the first and the last token of texts; got {ends}")
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


def _check_parts(path: Path, library: Any, kind: str, parts: _Parts) -> None:
    """Raise ValueError unless tokenizer.json has the kinds of parts that its class builds itself."""
    pre_tokenizer = _pre_tokenizers(library)
    model, steps = type(library.model).__name__, tuple(str(step.get("type")) for step in pre_tokenizer)
    pattern = next((step.get("pattern") for step in pre_tokenizer if step.get("type") == "Split"), None)
    wrong = {
        f"model must be {parts.model}": None if model == parts.model else model,
        f"pre_tokenizer must be {' or '.join(' and '.join(each) for each in parts.pre_tokenizers)}": (
            None if not parts.pre_tokenizers or steps in parts.pre_tokenizers else " and ".join(steps) or "none"
        ),
        "pattern of Split must be the one of the class": (
            None if not parts.patterns or pattern in [{"Regex": each} for each in parts.patterns] else shown(pattern)
        ),
    }
    for rule, got in wrong.items():
        if got is not None:
            raise ValueError(
                f"{path.with_name('tokenizer.json')}: {rule}, since {kind} of transformers builds it so; got {got} "
                f"({path.name} can have the tokenizer_class {_WHOLE_FILE!r}, which reads tokenizer.json as it is)"
            )


def _check_word_pieces(path: Path, library: Any, values: Mapping[str, Any]) -> None:
    """Raise ValueError unless tokenizer.json has the steps that the classes of BERT build themselves."""
    from tokenizers import normalizers, pre_tokenizers

    model = library.model
    first, last = (_content(values.get(key)) for key in ("cls_token", "sep_token"))
    are_usual = {
        "normalizer": isinstance(library.normalizer, normalizers.BertNormalizer),
        "pre_tokenizer": isinstance(library.pre_tokenizer, pre_tokenizers.BertPreTokenizer),
        "model": (model.continuing_subword_prefix, model.max_input_chars_per_word) == _WORD_PIECES,
        "post_processor": None in (first, last) or _has_ends(library, first, last),
    }
    for part, is_usual in are_usual.items():
        if not is_usual:
            name = values.get("tokenizer_class") or "BERT"
            raise ValueError(f"{path.with_name('tokenizer.json')}: {part} must be that of {name}, as {path.name} says")


def _has_ends(library: Any, first: str, last: str) -> bool:
    """Return whether a text of the tokenizer begins and ends with these tokens."""
    text: list[int] = library.encode("a", add_special_tokens=False).ids
    ends = library.token_to_id(first), library.token_to_id(last)
    return bool(text) and None not in ends and library.encode("a").ids == [ends[0], *text, ends[1]]


def _check_language(path: Path, library: Any, values: Mapping[str, Any], default: str, place: int) -> None:
    """Raise ValueError unless tokenizer.json adds the language of tokenizer_config.json to texts."""
    language = values.get("src_lang") or default
    number = library.token_to_id(language) if isinstance(language, str) else None
    added = library.encode("").ids
    if number is None or len(added) != 2 or added[-1 if values.get("legacy_behaviour") else place] != number:
        words = [library.id_to_token(token) for token in added]
        raise ValueError(
            f"{path}: src_lang must be the language that tokenizer.json adds to texts, {words}; got {shown(language)}"
        )


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
        if not isinstance(token, str) or token not in special:
            raise ValueError(f"{path}: {key} must be a special token of tokenizer.json; got {shown(given)}")


def _adds_blank(library: Any) -> bool | None:
    """Return whether the pre-tokenizer puts a blank before a text; None if it has no such setting."""
    for part in _pre_tokenizers(library):
        if part.get("type") == "ByteLevel":
            return bool(part["add_prefix_space"])
        if part.get("type") == "Metaspace":
            return bool(part["prepend_scheme"] != "never")
    return None


def _pre_tokenizers(library: Any) -> list[dict[str, Any]]:
    """Return the steps of the pre-tokenizer, as in tokenizer.json."""
    return _steps_of(library.pre_tokenizer)


def _steps_of(part: Any) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer, as in tokenizer.json."""
    if part is None:
        return []
    state = json.loads(part.__getstate__())
    steps: list[dict[str, Any]] = state.get("pretokenizers", state.get("normalizers", [state]))
    return steps
