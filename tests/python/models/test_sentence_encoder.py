"""Sentence embeddings: against a float64 oracle and a golden file, and with the same bits in any company."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bert_oracle
import numpy as np
import pretrained
import pytest
import tiny_bert
from tiny_bert import TEXTS
from tolerance import EMBEDDING_BOUND, assert_close, assert_same_bits

import mha_native
from mha_native.models import SentenceEncoder
from mha_native.models.text import batching as _batching

Array = np.ndarray[Any, Any]
GOLDEN = Path(__file__).parents[2] / "data" / "all_minilm_l6_v2.json"


def _assert_embeddings(actual: Array, expected: Array, label: str) -> None:
    assert_close(actual, expected, np.full(expected.shape, EMBEDDING_BOUND), label=label)


def _oracle(directory: Path, texts: list[str], normalize: bool = True) -> Array:
    settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    tensors = bert_oracle.read_tensors(directory / "model.safetensors")
    return np.stack([bert_oracle.sentence_embedding(tensors, settings, tiny_bert.ids(t), normalize) for t in texts])


@pytest.fixture(scope="module")
def golden() -> tuple[list[str], list[list[int]], Array]:
    entries = json.loads(GOLDEN.read_text(encoding="utf-8"))["texts"]
    embeddings = np.load(GOLDEN.with_suffix(".npy"))
    return [entry["text"] for entry in entries], [entry["tokens"] for entry in entries], embeddings


@pytest.fixture(scope="module")
def minilm(model_directory: Path) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(model_directory)


def test_the_pretrained_model_gives_the_golden_embeddings(
    minilm: SentenceEncoder, golden: tuple[list[str], list[list[int]], Array], isa: str
) -> None:
    texts, _, expected = golden
    embeddings = minilm.encode(texts)
    assert embeddings.dtype == np.float32
    _assert_embeddings(embeddings, expected, "golden")


@pytest.mark.exhaustive  # compares two constants: the oracle and the file of golden embeddings
def test_the_oracle_gives_the_golden_embeddings(
    model_directory: Path, golden: tuple[list[str], list[list[int]], Array]
) -> None:
    tensors = bert_oracle.read_tensors(model_directory / "model.safetensors")
    settings = json.loads((model_directory / "config.json").read_text(encoding="utf-8"))
    for text, tokens, expected in zip(*golden, strict=True):
        exact = bert_oracle.sentence_embedding(tensors, settings, tokens)
        # The golden file is float64 rounded once.
        assert_close(exact, expected.astype(np.float64), np.spacing(np.abs(expected)), label=text)


def test_the_pretrained_model_knows_what_is_alike(minilm: SentenceEncoder) -> None:
    pairs = minilm.encode(["How do I reset my password?", "I forgot my login credentials.", "Bake it for an hour."])
    alike, unlike = pairs[0] @ pairs[1], pairs[0] @ pairs[2]
    assert alike > unlike + 0.3


def test_the_pretrained_model_reads_as_many_tokens_as_it_says(minilm: SentenceEncoder) -> None:
    assert minilm.max_length == 256
    words = ["word"] * 300
    assert_same_bits(minilm.encode(" ".join(words)), minilm.encode(" ".join(words[:254])))
    assert np.any(minilm.encode(" ".join(words[:253])) != minilm.encode(" ".join(words[:254])))


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu"])
def test_each_activation(hidden_act: str, tmp_path: Path, isa: str, num_threads: int) -> None:
    directory = tiny_bert.write(tmp_path, tiny_bert.config(hidden_act=hidden_act))
    model = SentenceEncoder.from_pretrained(directory)
    _assert_embeddings(model.encode(TEXTS, num_threads=num_threads), _oracle(directory, TEXTS), hidden_act)


def test_a_large_eps(tmp_path: Path) -> None:
    directory = tiny_bert.write(tmp_path, tiny_bert.config(layer_norm_eps=0.1))
    _assert_embeddings(SentenceEncoder.from_pretrained(directory).encode(TEXTS), _oracle(directory, TEXTS), "eps")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_awkward_sizes(length: int, tmp_path: Path) -> None:
    settings = tiny_bert.config(
        hidden_size=7 * length, num_attention_heads=7, intermediate_size=5, num_hidden_layers=length
    )
    directory = tiny_bert.write(tmp_path, settings)
    _assert_embeddings(SentenceEncoder.from_pretrained(directory).encode(TEXTS), _oracle(directory, TEXTS), "sizes")


@pytest.fixture
def tiny(tmp_path: Path) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path))


def test_a_text_has_the_same_bits_alone_and_in_any_batch(
    tiny: SentenceEncoder, isa: str, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = tiny.encode(TEXTS, num_threads=num_threads)
    for text, embedding in zip(TEXTS, together, strict=True):
        assert_same_bits(tiny.encode(text), embedding, label=text)
        assert_same_bits(tiny.encode([text], num_threads=num_threads)[0], embedding, label=text)
    order = np.random.default_rng(0).permutation(4 * len(TEXTS))
    assert_same_bits(tiny.encode([(4 * TEXTS)[i] for i in order]), np.tile(together, (4, 1))[order])
    for tokens in (1, 2, 22, 23):  # less than a text has, too
        monkeypatch.setattr(_batching, "MOST_TOKENS", tokens)
        assert_same_bits(tiny.encode(TEXTS), together, label=f"{tokens} tokens at once")


def test_the_pretrained_model_has_the_same_bits_alone_and_in_any_batch(
    minilm: SentenceEncoder, golden: tuple[list[str], list[list[int]], Array], isa: str
) -> None:
    texts = golden[0]
    together = minilm.encode(texts)
    for text, embedding in zip(texts, together, strict=True):
        assert_same_bits(minilm.encode(text, num_threads=1), embedding, label=text)
    assert_same_bits(minilm.encode(texts[::-1])[::-1], together)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the threads of a process")
def test_a_short_text_wakes_no_thread_of_the_tokenizer(tiny: SentenceEncoder, tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from mha_native.models import SentenceEncoder\n"
        "model = SentenceEncoder.from_pretrained(sys.argv[1])\n"
        "def threads(texts):\n"
        "    before = len(os.listdir('/proc/self/task'))\n"
        "    model.encode(texts, num_threads=1)\n"
        "    return len(os.listdir('/proc/self/task')) - before\n"
        "print(threads('the dog'), threads(['the dog', 'dog']))\n"
    )
    environment = os.environ | {"RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "3"]


def test_many_threads_may_call_it(tiny: SentenceEncoder) -> None:
    expected = tiny.encode(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for embeddings in pool.map(tiny.encode, [TEXTS] * 40):
            assert_same_bits(embeddings, expected)


def test_batches_hold_no_more_tokens_than_they_may(tiny: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_batching, "MOST_TOKENS", 22)
    rows: list[int] = []
    compute = tiny._model.hidden_states

    def observed(tokens: Array, cu_seqlens: Array, num_threads: int | None) -> Array:
        rows.append(len(tokens))
        assert cu_seqlens[-1] == len(tokens)
        return compute(tokens, cu_seqlens, num_threads)

    monkeypatch.setattr(tiny._model, "hidden_states", observed)
    tiny.encode(TEXTS)
    lengths = [len(tiny_bert.ids(text)) for text in TEXTS]
    assert sum(rows) == sum(lengths)  # there is no padding
    assert max(rows) <= 22
    assert len(rows) < len(TEXTS)


def test_embeddings_come_while_texts_are_read(tiny: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_batching, "MOST_TOKENS", 50)
    monkeypatch.setattr(_batching, "MOST_TEXTS", 5)
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        while True:  # without an end
            read += 1
            yield TEXTS[read % len(TEXTS)]

    given = 0
    for rows in tiny.encode_batches(texts()):
        assert 1 <= len(rows) <= 25
        given += len(rows)
        assert read <= given + 50
        if given > 200:
            break
    assert given > 200


def test_encode_takes_any_number_of_texts(tiny: SentenceEncoder) -> None:
    assert tiny.encode([]).shape == (0, 24)
    assert tiny.encode("dog").shape == (24,)
    assert tiny.encode(["dog"]).shape == (1, 24)
    assert tiny.encode(()).dtype == np.float32
    assert list(tiny.encode_batches([])) == []
    assert_same_bits(tiny.encode(text for text in TEXTS), tiny.encode(tuple(TEXTS)))


def test_tokens_have_the_embeddings_of_their_text(tiny: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tiny.encode(TEXTS)
    sequences = [tiny_bert.ids(text) for text in TEXTS]
    assert_same_bits(tiny.encode_tokens(sequences), expected)
    assert_same_bits(tiny.encode_tokens([np.array(tokens, np.int32) for tokens in sequences], num_threads=2), expected)
    monkeypatch.setattr(_batching, "MOST_TOKENS", 9)
    assert_same_bits(tiny.encode_tokens(sequences), expected)
    assert tiny.encode_tokens([]).shape == (0, tiny.embed_dim)
    assert not tiny.encode_tokens([[]]).any()


@pytest.mark.parametrize(
    ("sequence", "error", "message"),
    [
        ([0.5], TypeError, "must be integers; got float64 at 1"),
        ([[1], [2]], ValueError, r"one axis; got \(2, 1\) at 1"),
        ([10**6], ValueError, "1000000"),
        ([-1], ValueError, "-1"),
        ([2**63], ValueError, "tokens must be integers of at most 63 bits; got larger ones at 1"),
        ([2**70], ValueError, "at most 63 bits"),
        ([-(2**70)], ValueError, "at most 63 bits"),
        ([2**70, 0.5], TypeError, "must be integers; got object at 1"),
        ([1] * 1000, ValueError, "1000"),
    ],
)
def test_what_are_no_tokens(sequence: Any, error: type[Exception], message: str, tiny: SentenceEncoder) -> None:
    with pytest.raises(error, match=message):
        tiny.encode_tokens([[1], sequence])


def test_the_length_of_embeddings(tiny: SentenceEncoder, tmp_path: Path) -> None:
    scaled, plain = tiny.encode(TEXTS), tiny.encode(TEXTS, normalize=False)
    _assert_embeddings(np.linalg.norm(scaled.astype(np.float64), axis=1), np.ones(len(TEXTS)), "lengths")
    _assert_embeddings(plain, _oracle(tmp_path, TEXTS, normalize=False), "as they are")
    assert_same_bits(tiny.encode(TEXTS, normalize=True), scaled)


def test_without_a_module_for_it_embeddings_keep_their_length(tmp_path: Path) -> None:
    pooling = {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}}
    tiny_bert.write(tmp_path, files={"modules.json": tiny_bert.modules("Transformer", "Pooling")} | pooling)
    model = SentenceEncoder.from_pretrained(tmp_path)
    _assert_embeddings(model.encode(TEXTS), _oracle(tmp_path, TEXTS, normalize=False), "as they are")
    _assert_embeddings(model.encode(TEXTS, normalize=True), _oracle(tmp_path, TEXTS), "scaled")


@pytest.mark.parametrize("folder", ["1_Pooling", "pool"])
def test_the_first_token_as_the_embedding(folder: str, tmp_path: Path) -> None:
    files = {
        f"{folder}/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "modules.json": tiny_bert.modules("Transformer", "Pooling", "Normalize", pooling=folder),
    }
    directory = tiny_bert.write(tmp_path, files=files)
    settings, tensors = tiny_bert.config(), tiny_bert.tensors(tiny_bert.config())
    first = [bert_oracle.hidden_states(tensors, settings, tiny_bert.ids(text))[0] for text in TEXTS]
    expected = np.stack([row / np.linalg.norm(row) for row in first])
    _assert_embeddings(SentenceEncoder.from_pretrained(directory).encode(TEXTS), expected, "cls")


def test_a_text_without_tokens(tmp_path: Path) -> None:
    tokenizer = json.loads(tiny_bert.tokenizer().to_str()) | {"post_processor": None}
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files={"tokenizer.json": tokenizer}))
    dog = model.encode("dog")
    assert np.any(dog != 0)
    for texts in (["", "dog", ""], ["dog"], [""], ["", ""]):
        expected = np.stack([dog if text else np.zeros_like(dog) for text in texts])
        assert_same_bits(model.encode(texts), expected, label=str(texts))
    files = {"tokenizer.json": tokenizer, "1_Pooling/config.json": {"pooling_mode_cls_token": True}}
    with pytest.raises(ValueError, match=r"tokenizer\.json adds no first token"):
        SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path, files=files))


@pytest.mark.parametrize("length", [3, 7, 20])
def test_texts_are_cut_at_max_seq_length(length: int, tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"sentence_bert_config.json": {"max_seq_length": length}})
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert model.max_length == length
    settings, tensors = tiny_bert.config(), tiny_bert.tensors(tiny_bert.config())
    expected = [bert_oracle.sentence_embedding(tensors, settings, tiny_bert.ids(text, length)) for text in TEXTS]
    _assert_embeddings(model.encode(TEXTS), np.stack(expected), "cut")


def test_what_the_tokenizer_pads_and_cuts_does_not_count(tmp_path: Path) -> None:
    tokenizer = tiny_bert.tokenizer()
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(4)
    tiny_bert.write(tmp_path, files={"tokenizer.json": json.loads(tokenizer.to_str())})
    _assert_embeddings(SentenceEncoder.from_pretrained(tmp_path).encode(TEXTS), _oracle(tmp_path, TEXTS), "padding")


def test_lower_case(tmp_path: Path) -> None:
    tiny_bert.write(tmp_path, files={"sentence_bert_config.json": {"do_lower_case": True}})
    model = SentenceEncoder.from_pretrained(tmp_path)
    assert_same_bits(model.encode("The DOG"), model.encode("the dog"))


def test_the_weights_of_each_head(tmp_path: Path, isa: str) -> None:
    model = SentenceEncoder.from_pretrained(tiny_bert.write(tmp_path))
    tokens, weights = model.attention_weights("the dog !")
    assert tokens == ["[CLS]", "the", "dog", "!", "[SEP]"]
    assert weights.shape == (model.num_layers, model.num_heads, 5, 5)
    settings = tiny_bert.config()
    expected = bert_oracle.attention_weights(tiny_bert.tensors(settings), settings, tiny_bert.ids("the dog !"))
    _assert_embeddings(weights, np.stack(expected), "weights")


@pytest.mark.parametrize(("text", "name"), [(3, "int"), (None, "NoneType"), (b"dog", "bytes"), (["a", "b"], "list")])
def test_a_text_that_is_no_text(text: Any, name: str, tiny: SentenceEncoder) -> None:
    with pytest.raises(TypeError, match=rf"texts must be str; got {name} at 1$"):
        tiny.encode(["dog", text])
    with pytest.raises(TypeError, match=name):
        tiny.attention_weights(text)


def test_half_of_a_surrogate_pair(tiny: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match=r"text 2 holds half of a surrogate pair, '\\ud800', at character 1"):
        tiny.encode(["dog", "", "a\ud800"])


def test_what_is_no_iterable(tiny: SentenceEncoder) -> None:
    with pytest.raises(TypeError):
        tiny.encode(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_threads", [0, -1, "two"])
def test_a_wrong_number_of_threads(num_threads: Any, tiny: SentenceEncoder) -> None:
    with pytest.raises((TypeError, ValueError), match="num_threads"):
        tiny.encode("dog", num_threads=num_threads)


def test_it_says_what_it_is(tiny: SentenceEncoder) -> None:
    sizes = "embed_dim=24, num_layers=2, num_heads=3, vocab_size=37, max_length=20"
    assert repr(tiny) == f"SentenceEncoder({sizes}, dtype='float32', weight_dtype='float32')"
    assert (tiny.embed_dim, tiny.num_layers, tiny.num_heads) == (24, 2, 3)


def _run(program: str, *arguments: str) -> str:
    """What a program prints that may call ``memory("VmRSS")``, what the process holds, or "VmHWM", the most so far."""
    if not Path("/proc/self/status").exists():
        pytest.skip("asks Linux for the memory of a process")
    program = (
        "import re, sys\n"
        "from mha_native.models import SentenceEncoder\n"
        "import safetensors, tokenizers\n"
        "def memory(name):\n"
        "    return 1024 * int(re.search(name + r':\\s*(\\d+) kB', open('/proc/self/status').read())[1])\n"
    ) + program
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return result.stdout


def test_the_table_of_words_is_held_once(tmp_path: Path) -> None:
    settings = tiny_bert.config(vocab_size=1 << 18, hidden_size=8, num_attention_heads=1)  # 8 MiB
    directory = tiny_bert.write(tmp_path, settings)
    program = (
        "before = memory('VmRSS')\n"
        "model = SentenceEncoder.from_pretrained(sys.argv[1])\n"
        "model.encode('dog')\n"
        "print(memory('VmRSS') - before)\n"
    )
    table = 4 * settings["vocab_size"] * settings["hidden_size"]
    assert table <= int(_run(program, str(directory))) < 2 * table


def test_loading_takes_no_memory_beside_the_weights(model_directory: Path) -> None:
    program = (
        "before = memory('VmRSS')\n"
        "model = SentenceEncoder.from_pretrained(sys.argv[1])\n"
        "print(memory('VmHWM') - before)\n"
    )
    weights = (model_directory / "model.safetensors").stat().st_size
    assert weights < int(_run(program, str(model_directory))) < weights + (32 << 20)  # the tokenizer takes 10 MiB


def test_a_batch_takes_little_memory(model_directory: Path) -> None:
    # 32 texts of 137 tokens, beyond weights and tokenizer.
    program = (
        "model = SentenceEncoder.from_pretrained(sys.argv[1])\n"
        "model.encode('word')\n"
        "before = memory('VmRSS')\n"
        "open('/proc/self/clear_refs', 'w').write('5')  # the most so far is what there is now\n"
        "assert memory('VmHWM') < before + (4 << 20)\n"
        "model.encode(['word ' * 135] * 32)\n"
        "print(memory('VmHWM') - before)\n"
    )
    assert 1 << 20 < int(_run(program, str(model_directory))) < 40 << 20


def test_importing_it_is_quick_and_takes_no_tokenizer() -> None:
    program = "import mha_native.models, sys; print({'tokenizers', 'safetensors'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "set()\n"


def test_only_ci_needs_the_pretrained_model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(folder: Path, model: pretrained.Model) -> Path:
        raise OSError("offline")

    monkeypatch.setattr(pretrained, "fetch", fetch)
    monkeypatch.delenv("MHA_NATIVE_MODEL", raising=False)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="offline"):
        pretrained.find(request)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="offline"):
        pretrained.find(request)


def test_it_is_part_of_the_package() -> None:
    assert mha_native.models.SentenceEncoder is SentenceEncoder
