"""Every class that opens the files of a model: a tiny model for each, damaged files of it, and what becomes of them.

The models are opened in another process, which has 4 GiB of memory, and 5 seconds of a processor for each: a model that
takes more ends it.
"""

from __future__ import annotations

import faulthandler
import io
import json
import pickle
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf_files
import numpy as np
import tiny_bert
import tiny_classifiers
import tiny_encoders
import tiny_families
import tiny_generators
import tiny_images
import tiny_language_model
import tiny_multi_vector
import tiny_sparse
import tiny_speech
from checkpoints import write_folder
from damage import ODD, damaged_bytes, damaged_json

SECONDS, BYTES = 5, 4 << 30

TEXTS = ["the dog", "", "the cat ! a b c", "x " * 40]
PAIRS = [("the dog", "a cat"), ("", "b"), ("x " * 30, "the")]
TOKENS = [3, 7, 12, 5, 9, 20]
IMAGES = list(np.random.default_rng(0).integers(0, 256, (2, 40, 33, 3), dtype=np.uint8))
LETTERS = ["a b", "", "ab A c", "g f e d c b a g f e d c b a"]

_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 15, "truncation_side": "right",
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
}  # fmt: skip


def _tokenizer_files(pairs: bool = False) -> dict[str, Any]:
    library = tiny_bert.tokenizer()
    library.add_special_tokens(tiny_bert.WORDS[:4])
    contents = json.loads(library.to_str())
    if pairs:
        contents["post_processor"] = tiny_classifiers.tokenizer()["post_processor"]
    return {"tokenizer.json": contents, "tokenizer_config.json": _TOKENIZER_CONFIG}


_SENTENCE_FILES = {
    "modules.json": tiny_bert.modules("Transformer", "Pooling", "Dense", "Normalize"),
    "1_Pooling/config.json": {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True,
                              "pooling_mode_cls_token": False, "include_prompt": True},
    "3_Normalize/config.json": {"module_input_name": "sentence_embedding"},
    "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
    "config_sentence_transformers.json": {
        "prompts": {"query": "the ", "document": ""}, "default_prompt_name": "query", "truncate_dim": 7,
        "similarity_fn_name": "dot",
    },
}  # fmt: skip


def _sentence_model(folder: Path, family: str) -> None:
    files = _SENTENCE_FILES | _tokenizer_files()
    if family == "bert":
        tiny_bert.write(folder, files=files)
    elif family == "mpnet":
        tiny_families.write(folder, family, files)
    else:
        tiny_encoders.write(folder, family, files)
    tiny_bert.write_dense(folder, 2, 24, 9)


def _static_model(folder: Path, family: str) -> None:
    rng = np.random.default_rng(3)
    words = rng.standard_normal((len(tiny_bert.WORDS), 9)).astype(np.float32)
    kinds = [f"sentence_transformers.models.{kind}" for kind in ("StaticEmbedding", "Normalize")]
    modules = [{"type": kind, "path": path} for kind, path in zip(kinds, (".", "1_Normalize"), strict=True)]
    files = {"tokenizer.json": _tokenizer_files()["tokenizer.json"], "tokenizer_config.json": None}
    files["config_sentence_transformers.json"] = _SENTENCE_FILES["config_sentence_transformers.json"]
    if family == "model2vec":
        files["config.json"] = {"model_type": "model2vec", "normalize": True}
        rows = {"embeddings": words[:5], "mapping": rng.integers(0, 5, len(words)), "weights": rng.random(len(words))}
        write_folder(folder, files, rows)
    else:
        write_folder(folder, files | {"modules.json": modules}, {"embedding.weight": words})


def _sparse_model(folder: Path, family: str) -> None:
    if family == "router":
        tiny_sparse.write_files(folder, _tokenizer_files())
    else:
        tiny_bert.write_masked(folder)
        write_folder(folder, _tokenizer_files())


def _bge_model(folder: Path, family: str) -> None:
    tiny_sparse.write_bge(folder)
    write_folder(folder, _tokenizer_files())


def _multi_vector_model(folder: Path, family: str) -> None:
    kinds: dict[str, Callable[..., Path]] = {
        "pylate": tiny_multi_vector.write_pylate,
        "colbert": tiny_multi_vector.write_colbert,
        "plain": tiny_multi_vector.write_sentence_transformers,
    }
    kinds[family](folder)


def _text_classifier(folder: Path, family: str) -> None:
    tiny_classifiers.write(folder, family, 3, files=_tokenizer_files(pairs=True))


def _token_classifier(folder: Path, family: str) -> None:
    tiny_classifiers.write(folder, family, tokens=True, files=_tokenizer_files())


def _language_model(folder: Path, family: str) -> None:
    files = {"generation_config.json": {"eos_token_id": [3, 4], "bos_token_id": 2, "pad_token_id": 0}}
    if family == "gpt2":
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tiny_language_model.SPECIAL[0]}
        settings |= {"bos_token": tiny_language_model.SPECIAL[1], "chat_template": tiny_language_model.TEMPLATE}
        tiny_language_model.write(folder, files | {"tokenizer_config.json": settings})
    else:
        template = {"chat_template": tiny_language_model.TEMPLATE, "bos_token": "[CLS]", "eos_token": "[SEP]"}
        files |= _tokenizer_files() | {"tokenizer_config.json": _TOKENIZER_CONFIG | template}
        tiny_generators.write(folder, tiny_generators.config(family), files=files)


def _seq2seq_model(folder: Path, family: str) -> None:
    generation = {"decoder_start_token_id": 3, "bos_token_id": 3, "eos_token_id": 2, "pad_token_id": 0}
    files = {"generation_config.json": generation} | _tokenizer_files()
    tiny_generators.write(folder, tiny_generators.config(family), files=files)


def _speech_model(folder: Path, family: str) -> None:
    config = tiny_speech.config("turbo" if family == "turbo" else "whisper")
    if family.startswith("ctranslate2"):
        tiny_speech.write_ctranslate2(folder, config, "int8" if family.endswith("int8") else "float32")
    else:
        tiny_speech.write(folder, config, _tokenizer_files())


def _image_model(folder: Path, family: str) -> None:
    tiny_images.write(folder, tiny_images.config(family))


def _image_classifier(folder: Path, family: str) -> None:
    tiny_images.write(folder, tiny_images.config(family, 3))


def _gguf_model(folder: Path, family: str) -> None:
    write_folder(folder, {})
    gguf_files.write(folder / "model.gguf", family)


def _sentence_encoder(folder: Path) -> list[Any]:
    from mha_native.models import SentenceEncoder

    return [SentenceEncoder.from_pretrained(folder).encode(TEXTS)]


def _sentence_transformer(folder: Path) -> list[Any]:
    from mha_native.sentence_transformers import SentenceTransformer

    return [SentenceTransformer(str(folder)).encode(TEXTS)]


def _sparse_encoder(folder: Path) -> list[Any]:
    from mha_native.models import SparseEncoder

    model = SparseEncoder.from_pretrained(folder)
    return [model.encode_query(TEXTS).to_dense(), model.encode_document(TEXTS).to_dense()]


def _bge_encoder(folder: Path) -> list[Any]:
    from mha_native.models import BGEM3Encoder

    found = BGEM3Encoder.from_pretrained(folder).encode(TEXTS, return_sparse=True, return_colbert_vecs=True)
    return [found["dense_vecs"], found["lexical_weights"]]


def _multi_vector_encoder(folder: Path) -> list[Any]:
    from mha_native.models import MultiVectorEncoder

    model = MultiVectorEncoder.from_pretrained(folder)
    return [model.encode_query(TEXTS).rows, model.encode_document(TEXTS).rows]


def _cross_encoder(folder: Path) -> list[Any]:
    from mha_native.sentence_transformers import CrossEncoder

    return [CrossEncoder(str(folder)).predict(PAIRS)]


def _classified(folder: Path) -> list[Any]:
    from mha_native.models import TextClassifier

    model = TextClassifier.from_pretrained(folder)
    return [model.predict_proba([*TEXTS, *PAIRS]), list(model.labels)]


def _tagged(folder: Path) -> list[Any]:
    from mha_native.models import TokenClassifier

    found = TokenClassifier.from_pretrained(folder)(TEXTS[:3], aggregation_strategy="none", ignore_labels=())
    words = [[(word["entity"], word["start"], word["end"], word["index"]) for word in text] for text in found]
    return [np.array([word["score"] for text in found for word in text]), words]


def _generated(folder: Path) -> list[Any]:
    from mha_native.models import CausalLM

    path = folder / "model.gguf"
    model = CausalLM.from_pretrained(path if path.exists() else folder)
    tokens = model.tokenize("the cat")
    text = "" if path.exists() else model.chat([{"role": "user", "content": "a"}], max_new_tokens=2)
    return [model.logits(TOKENS), tokens, text, model.generate_tokens(TOKENS, max_new_tokens=4)]


def _translated(folder: Path) -> list[Any]:
    from mha_native.models import Seq2SeqLM

    model = Seq2SeqLM.from_pretrained(folder)
    found = model.generate_tokens(TOKENS, max_new_tokens=6).tokens
    return [model.logits(TOKENS, [3, 5, 6]), model.tokenize("the cat"), list(found)]


def _heard(folder: Path) -> list[Any]:
    from mha_native.models import SpeechSeq2Seq

    model = SpeechSeq2Seq.from_pretrained(folder)
    features = np.random.default_rng(0).standard_normal((1, model.mel_bins, min(model.max_frames, 40)))
    encoded = model.encode(features.astype(np.float32))
    tokens = [3, 8, 9]
    return [encoded.rows, model.decoder(encoded, [0]).step([tokens]), model.alignment(encoded, 0, tokens)]


def _seen(folder: Path) -> list[Any]:
    from mha_native.models import ImageEncoder

    model = ImageEncoder.from_pretrained(folder)
    return [model.encode(IMAGES), model.hidden_states(IMAGES)]


def _labelled(folder: Path) -> list[Any]:
    from mha_native.models import ImageClassifier

    model = ImageClassifier.from_pretrained(folder)
    return [model.predict_proba(IMAGES), list(model.labels)]


def _compared(folder: Path) -> list[Any]:
    from mha_native.models import ImageTextEncoder

    model = ImageTextEncoder.from_pretrained(folder)
    texts = model.encode_texts(LETTERS, normalize=False)
    return [texts, model.encode_images(IMAGES, normalize=False), model.logits(IMAGES, LETTERS)]


class Opened(NamedTuple):
    """A class: what writes a model of a family, what opens and uses it, and the families."""

    write: Callable[[Path, str], None]
    use: Callable[[Path], list[Any]]
    families: tuple[str, ...]


_SENTENCES = ("bert", "mpnet", "modernbert", "nomic_bert", "gemma3_text", "qwen3")
_CLASSIFIERS = ("bert", "roberta", "distilbert")

CLASSES = {
    "SentenceEncoder": Opened(_sentence_model, _sentence_encoder, _SENTENCES),
    "SentenceTransformer": Opened(_sentence_model, _sentence_transformer, _SENTENCES),
    "SentenceEncoder of words": Opened(_static_model, _sentence_encoder, ("static", "model2vec")),
    "SparseEncoder": Opened(_sparse_model, _sparse_encoder, ("router", "plain")),
    "MultiVectorEncoder": Opened(_multi_vector_model, _multi_vector_encoder, ("plain", "pylate", "colbert")),
    "BGEM3Encoder": Opened(_bge_model, _bge_encoder, ("bge",)),
    "CrossEncoder": Opened(_text_classifier, _cross_encoder, _CLASSIFIERS),
    "TextClassifier": Opened(_text_classifier, _classified, _CLASSIFIERS),
    "TokenClassifier": Opened(_token_classifier, _tagged, ("bert", "roberta")),
    "CausalLM": Opened(_language_model, _generated, ("llama", "gemma3_text", "gemma2", "gpt2", "qwen2", "mistral")),
    "CausalLM of GGUF": Opened(_gguf_model, _generated, ("llama", "gemma3", "gpt2", "gemma2", "qwen3")),
    "Seq2SeqLM": Opened(_seq2seq_model, _translated, ("bart", "t5", "marian", "pegasus")),
    "ImageEncoder": Opened(_image_model, _seen, tiny_images.FAMILIES),
    "ImageClassifier": Opened(_image_classifier, _labelled, tiny_images.FAMILIES),
    "ImageTextEncoder": Opened(_image_model, _compared, tiny_images.PAIRS),
    "SpeechSeq2Seq": Opened(_speech_model, _heard, ("whisper", "turbo")),
    "SpeechSeq2Seq of CTranslate2": Opened(_speech_model, _heard, ("ctranslate2", "ctranslate2 int8")),
}

# Counts and lengths that no file has.
HUGE = (1 << 16, 1 << 20, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1)


def damage(name: str, folder: Path, seed: int) -> tuple[Path, bytes]:
    """Write model `seed` of a class, with damage in one file. Return the file, and its contents without damage."""
    families, rng = CLASSES[name].families, random.Random(f"{name} {seed}")
    family = families[seed % len(families)]
    home = folder / family
    if not home.exists():
        CLASSES[name].write(home, family)
    if (path := home / "model.gguf").exists():
        return path, _replaced(path, _damaged_gguf(path.read_bytes(), family, rng))
    files = sorted(path for path in home.rglob("*") if path.is_file())
    path = home / "config.json"
    path = path if rng.random() < 0.35 and path.exists() else rng.choice(files)
    raw = path.read_bytes()
    kind = rng.choices(["json", "bytes", "huge"], [3, 1, 1])[0]
    if kind == "huge" and path.suffix == ".json":
        damaged = damaged_json(raw, rng, HUGE, int)
    else:
        is_json = kind != "bytes" and path.suffix != ".bin"
        damaged = damaged_json(raw, rng) if is_json else damaged_bytes(raw, rng)
    return path, _replaced(path, damaged)


def _replaced(path: Path, damaged: bytes) -> bytes:
    raw = path.read_bytes()
    path.write_bytes(damaged)
    return raw


def _damaged_gguf(raw: bytes, family: str, rng: random.Random) -> bytes:
    metadata, tensors = gguf_files.model(family)
    if rng.random() < 0.4:
        end = len(raw) - sum(tensor.nbytes for tensor in tensors.values())
        return damaged_bytes(raw[:end], rng) + raw[end:]
    for _ in range(rng.randint(1, 2)):
        entry = rng.choice([name for name in metadata if not isinstance(metadata[name], list)])
        odd = rng.choice([*ODD[2:11], *HUGE, 3, 4, 16, 0.5, 1e30, float("nan"), True, "", "gpt2", "x"])
        odd = metadata[entry] + rng.choice([-1, 1]) if type(metadata[entry]) is int and rng.random() < 0.3 else odd
        is_wide = type(odd) is int and not -(1 << 31) <= odd < 1 << 32
        metadata[entry] = struct.pack("<IQ", 10, odd % (1 << 64)) if is_wide else odd
        if rng.random() < 0.15:
            del metadata[entry]
    return gguf_files.contents(metadata, tensors)


class Outcome(NamedTuple):
    """What became of a damaged model: the results of its use, or the message that refuses it."""

    seed: int
    results: list[Any] | None
    message: str
    error: str = ""  # its type, if no damaged file may raise it


def _outcome(name: str, home: Path, seed: int) -> Outcome:
    try:
        return Outcome(seed, CLASSES[name].use(home), "")
    except (ValueError, OSError) as error:
        return Outcome(seed, None, str(error))
    except BaseException as error:
        return Outcome(seed, None, str(error), type(error).__name__)


def home_of(name: str, folder: Path, seed: int) -> Path:
    """The folder of model `seed`."""
    return folder / CLASSES[name].families[seed % len(CLASSES[name].families)]


def _set_limits() -> None:
    import mha_native.models  # noqa: F401  (before the limits)

    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    faulthandler.register(signal.SIGPROF, chain=True)


def _write_outcome(name: str, home: Path, seed: int) -> None:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    faulthandler.dump_traceback_later(20 * SECONDS, exit=True)  # a lock, which takes no time of a processor
    outcome = _outcome(name, home, seed)
    signal.setitimer(signal.ITIMER_PROF, 0)
    faulthandler.cancel_dump_traceback_later()
    pickle.dump(outcome, sys.stdout.buffer)
    sys.stdout.flush()


def open_damaged(name: str, folder: str, first: int, end: int) -> None:
    """Write the outcome of each of the damaged models `first` to ``end - 1`` to standard output."""
    _set_limits()
    for seed in range(first, end):
        path, raw = damage(name, Path(folder), seed)
        _write_outcome(name, home_of(name, Path(folder), seed), seed)
        path.write_bytes(raw)


def outcomes(name: str, folder: Path, count: int) -> Iterator[Outcome | tuple[int, str]]:
    """Yield the outcome of each of `count` damaged models, or its number and what ended the program."""
    first = 0
    while first < count:
        shutil.rmtree(folder, ignore_errors=True)
        found, errors = _run("open_damaged", name, str(folder), first, count)
        yield from found
        first += len(found)
        if first < count:
            yield first, errors[-4000:]
            first += 1


def with_count(name: str, folder: Path, entries: Sequence[str], counts: Sequence[int]) -> list[Outcome]:
    """Return the outcome for each count in each of some entries of the model, in a process with the limits."""
    found, errors = _run("open_with_counts", name, str(folder), entries, counts)
    assert not errors
    return found


def _run(function: str, *arguments: Any) -> tuple[list[Outcome], str]:
    """Call a function of this module in a process of its own. Return the outcomes, and its standard error."""
    code = f"import damaged_models; damaged_models.{function}(*{arguments!r})"
    program = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True)
    found, stream = [], io.BytesIO(program.stdout)
    while stream.tell() < len(program.stdout):
        found.append(pickle.load(stream))
    return found, program.stderr.decode()


def open_with_counts(name: str, folder: str, entries: Sequence[str], counts: Sequence[int]) -> None:
    """Write an outcome for each count in each of some entries of the model to standard output."""
    _set_limits()
    for family in CLASSES[name].families:
        home = Path(folder) / family
        CLASSES[name].write(home, family)
        path = home / "model.gguf" if name.endswith("GGUF") else home / "config.json"
        raw = path.read_bytes()
        metadata, tensors = gguf_files.model(family) if name.endswith("GGUF") else (json.loads(raw), {})
        read = ("text_config", "vision_config") if name == "ImageTextEncoder" else ("vision_config",)
        sections = [metadata, *(metadata[part] for part in read if part in metadata)]
        places = [(part, entry) for part in sections for entry in part.keys() & {*entries, f"{family}.block_count"}]
        for part, entry in places:
            given = part[entry]
            for count in counts:
                if name.endswith("GGUF"):
                    changed = metadata | {entry: struct.pack("<IQ", 10, count)}
                    path.write_bytes(gguf_files.contents(changed, tensors))
                else:
                    part[entry] = count
                    path.write_text(json.dumps(metadata), encoding="utf-8")
                _write_outcome(name, home, 0)
            part[entry] = given
        path.write_bytes(raw)
