"""Models of every family with random weights, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
DISTILBERT_SIZES = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}

# What its classes in transformers begin with.
CLASSES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert",
           "distilbert": "DistilBert", "mpnet": "MPNet",
           "modernbert": "ModernBert", "nomic_bert": "NomicBert", "gte": "Gte",
           "albert": "Albert", "electra": "Electra", "deberta-v2": "DebertaV2"}  # fmt: skip
FAMILIES = list(CLASSES)

# Of the positions in config.json those that no token has: positions begin behind the number of padding.
UNUSED_POSITIONS = dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), 2)

WITHOUT_TYPES = ("distilbert", "mpnet", "modernbert")  # of tokens

# What config.json says besides sizes. Layers that ALBERT repeats multiply roundings, so its weights are smaller;
# distances of DeBERTa share rows of the table from 3 on.
OWN = {
    "albert": {"embedding_size": 10, "num_hidden_layers": 3, "num_hidden_groups": 2, "initializer_range": 0.25},
    "electra": {"embedding_size": 12},
    "deberta-v2": {
        "relative_attention": True, "position_buckets": 6, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
        "norm_rel_ebd": "layer_norm", "position_biased_input": False,
    },
}  # fmt: skip

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *map("##{}".format, "abcdefghij"), "the"]


def _byte_level() -> Any:
    import tokenizers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("d", "o"), ("do", "g"), ("Ġ", "dog"), ("Ġ", "a")]
    words = [*SPECIAL, *letters, *map("".join, merges)]
    return {word: i for i, word in enumerate(words)}, merges


def _byte_level_of_bert(**arguments: Any) -> Any:
    """Byte-level BPE with the special tokens of BERT."""
    import tokenizers
    import transformers

    vocab, merges = _byte_level()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *list(vocab)[len(SPECIAL) :]]
    library = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, merges))
    library.normalizer = tokenizers.normalizers.NFC()
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    inputs = ["input_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, model_input_names=inputs, **names, **arguments
    )


def tokenizer_of(model_type: str, **arguments: Any) -> Any:
    """A tokenizer of few words, of the kind that the family has."""
    import transformers

    if model_type in ("bert", "distilbert"):
        kind = transformers.BertTokenizer if model_type == "bert" else transformers.DistilBertTokenizer
        return kind(vocab={word: i for i, word in enumerate(BERT_WORDS)}, **arguments)
    if model_type == "mpnet":
        words = ["<s>", "<pad>", "</s>", *BERT_WORDS[1:2], *BERT_WORDS[5:], "<mask>"]
        return transformers.MPNetTokenizer(vocab={word: i for i, word in enumerate(words)}, **arguments)
    if model_type in ("nomic_bert", "electra"):
        return transformers.BertTokenizer(vocab={word: i for i, word in enumerate(BERT_WORDS)}, **arguments)
    if model_type == "modernbert":
        return _byte_level_of_bert(**arguments)
    if model_type == "roberta":
        vocab, merges = _byte_level()
        return transformers.RobertaTokenizer(vocab=vocab, merges=merges, **arguments)
    special = SPECIAL[:4] if model_type not in ("albert", "deberta-v2") else BERT_WORDS[:5]
    pieces = [(word, 0.0) for word in special]
    pieces += [("▁", -3.0), ("▁the", -2.0), ("▁dog", -2.5), ("▁a", -2.2), ("th", -3.1), ("og", -3.5)]
    pieces += [(letter, -5.0 - i / 10) for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz.,!?")]
    if model_type in ("xlm-roberta", "gte"):
        return transformers.XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)], **arguments)
    if model_type == "albert":
        return transformers.AlbertTokenizer(vocab=pieces, pad_token="[PAD]", unk_token="[UNK]", **arguments)
    if model_type == "deberta-v2":
        return transformers.DebertaV2Tokenizer(vocab=pieces, **arguments)
    return transformers.CamembertTokenizer(vocab=[*pieces, ("<mask>", 0.0)], additional_special_tokens=[], **arguments)


def save(
    directory: Path, model_type: str, head: str = "Model", dtype: str = "float32", tokenizer: Any = None, **changes: Any
) -> Path:
    """A model with a head of transformers, or "Model" for none. `changes` are entries of config.json."""
    import torch
    import transformers

    library = tokenizer or tokenizer_of(model_type, model_max_length=24)
    name = CLASSES[model_type]
    sizes = DISTILBERT_SIZES if model_type == "distilbert" else SIZES
    positions = {"max_position_embeddings": 32, "vocab_size": len(library), "initializer_range": 0.5}
    if model_type == "modernbert":  # which has other numbers of special tokens by default, and a large window
        tokens = dict(zip(("pad_token_id", "cls_token_id", "sep_token_id"), (0, 2, 3), strict=True))
        sizes = sizes | tokens | {"bos_token_id": 2, "eos_token_id": 3, "local_attention": 6, "num_hidden_layers": 4}
    config = getattr(transformers, f"{name}Config")(**(sizes | positions | OWN.get(model_type, {}) | changes))
    torch.manual_seed(0)
    model = getattr(transformers, name + head)(config).eval()
    with torch.no_grad():  # which are zeros and ones in a new model, and so without effect
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.randn_like(parameter) / 4
        for embedding in model.modules():  # the row of padding, too
            if isinstance(embedding, torch.nn.Embedding):
                embedding.weight += torch.randn_like(embedding.weight) / 4
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    library.save_pretrained(directory)
    return directory
