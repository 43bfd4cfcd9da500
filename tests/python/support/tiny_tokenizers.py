"""Tokenizers of each kind that families of models have, with no more words than the tiny model has rows."""

from __future__ import annotations

from typing import Any

import tokenizers
from checkpoints import byte_level_bpe, vocabulary

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]

TEXTS = [
    "", " ", "a", "the dog", "ab  ba", " dog", "the dog the dog the dog the dog the dog the dog", "a <pad> b",
    "<mask>a", "dog\ta\nb", "unknown é",
]  # fmt: skip


def byte_level(add_prefix_space: bool = False) -> Any:
    """BPE over bytes, as RoBERTa has it."""
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("d", "o"), ("do", "g"), ("Ġ", "dog")]
    result = byte_level_bpe(SPECIAL, merges, [*"abdeghknotuw", "Ġ", "ĉ", "Ċ"], add_prefix_space)
    result.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, add_prefix_space)
    result.add_special_tokens(SPECIAL)
    return result


def qwen2_pre_tokenizer() -> Any:
    """The steps that Qwen's tokenizer has before its BPE over bytes."""
    parts = ["(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
             r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]  # fmt: skip
    kinds = tokenizers.pre_tokenizers
    split = kinds.Split(tokenizers.Regex("|".join(parts)), "isolated")
    return kinds.Sequence([split, kinds.ByteLevel(add_prefix_space=False, use_regex=False)])


def unigram(prepend_scheme: str = "always") -> Any:
    """Unigram over words that begin with a mark, as XLM-RoBERTa and CamemBERT have it."""
    pieces = [(word, 0.0) for word in SPECIAL[:4]]
    pieces += [("▁", -3.0), ("▁the", -2.0), ("▁dog", -2.5), ("▁a", -2.2)]
    pieces += [(letter, -5.0 - i / 10) for i, letter in enumerate("abdeghknotuw")] + [("<mask>", 0.0)]
    result = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=3))
    result.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.WhitespaceSplit(),
            tokenizers.pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme),
        ]
    )
    result.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    result.add_special_tokens(SPECIAL)
    return result


def word_piece(**normalizer: Any) -> Any:
    """WordPiece, as BERT and DistilBERT have it."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *"abdeghkno", *map("##{}".format, "abdeghkno"), "the", "dog"]
    result = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary(words), unk_token="[UNK]"))
    result.normalizer = tokenizers.normalizers.BertNormalizer(**normalizer)
    result.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    result.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    result.add_special_tokens(special)
    return result


KINDS = {
    "bert": word_piece,
    "roberta": byte_level,
    "xlm-roberta": unigram,
    "camembert": unigram,
    "distilbert": word_piece,
    "mpnet": word_piece,
}  # by the families that have them
