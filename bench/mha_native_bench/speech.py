"""Times Whisper against faster-whisper, transformers and openai-whisper, on one thread and on two.

    python -m mha_native_bench.speech whisper-tiny.en talk.wav [CASE ...]

The model is a folder of CTranslate2, and the recording has 30 seconds of English speech at least. Each program is a
process of its own with its own weights, and the processes take turns, so that other work of the machine slows all of
them alike. Programs whose packages are missing are left out. The cases:

    speech-encode-30s  rows of the encoder for a window of 30 s; all programs in float32 must agree
    speech-decode      100 tokens after that window, the most probable ones
    speech-talk-5min   the text of the recording, at most 5 minutes, by beam search with 5 beams
    speech-batch-5min  the same by many windows at once
    speech-mel-30s     the log-mel spectrogram of a window
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mha_native.models.files.ctranslate2 import CTranslate2File, CTranslate2Source
from mha_native.speech import BatchedInferencePipeline, VadOptions, WhisperModel, decode_audio
from mha_native.speech._mel import LogMel

Array = NDArray[np.float32]
Run = Callable[[], Any]  # a call that is timed

CASES = ("speech-encode-30s", "speech-decode", "speech-talk-5min", "speech-batch-5min", "speech-mel-30s")
RATE, WINDOW = 16_000, 30 * 16_000
NEW_TOKENS = 100
ROUNDS, MOST_SECONDS = 7, 60.0  # of a case, in all programs together

# Names of parts in openai-whisper, by their names in transformers, in the order of replacement.
_IN_OPENAI = (
    *(("layers.", "blocks."), ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("final_layer_norm", "mlp_ln")),
    *(("encoder_attn_layer_norm", "cross_attn_ln"), ("self_attn_layer_norm", "attn_ln")),
    *(("encoder_attn.", "cross_attn."), ("self_attn.", "attn."), ("q_proj", "query"), ("k_proj", "key")),
    *(("v_proj", "value"), ("out_proj", "out"), ("encoder.layer_norm", "encoder.ln_post")),
    *(("decoder.layer_norm", "decoder.ln"), ("embed_tokens", "token_embedding")),
    ("embed_positions.weight", "positional_embedding"),
)


class Given:
    """What all programs get: a folder, the samples of a recording, and threads."""

    def __init__(self, folder: str, recording: str, threads: int) -> None:
        self.folder, self.threads = folder, threads
        self.talk = cast(Array, decode_audio(recording))[: 10 * WINDOW]
        self.samples = np.resize(self.talk, WINDOW)
        self.features = LogMel(80)(self.samples)
        self.prompt = [50257, 50362]  # <|startoftranscript|><|notimestamps|> of models of English
        self.end = 50256


def ours(given: Given, weight_dtype: str | None) -> dict[str, Run]:
    """The calls of this library."""
    whisper = WhisperModel(given.folder, weight_dtype=cast(Any, weight_dtype), cpu_threads=given.threads)
    model, mel = whisper.model, LogMel(80, given.threads)
    encoded = model.encode(given.features[None])

    def decode() -> list[int]:
        state, read, found = model.decoder(encoded, [0]), given.prompt, []
        for _ in range(NEW_TOKENS):
            logits = state.step([np.array(read)], last_only=True)[0]
            logits[given.end] = -np.inf
            read = [int(logits.argmax())]
            found += read
        return found

    def batch() -> str:
        options = VadOptions(method="energy", min_silence_duration_ms=160, max_speech_duration_s=30)
        pipeline = BatchedInferencePipeline(whisper)
        return _text(pipeline.transcribe(given.talk, vad_parameters=options, without_timestamps=False)[0])

    return {
        "speech-encode-30s": lambda: model.encode(given.features[None]).rows,
        "speech-decode": decode,
        "speech-talk-5min": lambda: _text(whisper.transcribe(given.talk)[0]),
        "speech-batch-5min": batch,
        "speech-mel-30s": lambda: mel(given.samples),
    }


def faster_whisper(given: Given, compute_type: str) -> dict[str, Run]:
    """The calls of faster-whisper, which computes by CTranslate2."""
    import ctranslate2
    import faster_whisper

    whisper = faster_whisper.WhisperModel(
        given.folder, device="cpu", compute_type=compute_type, cpu_threads=given.threads, local_files_only=True
    )
    encoded = whisper.encode(given.features)

    def decode() -> list[int]:
        found = whisper.model.generate(
            encoded, [given.prompt], beam_size=1, max_length=2 * NEW_TOKENS,  # half of it is for the prompt
            suppress_blank=False, suppress_tokens=[given.end],
        )  # fmt: skip
        return list(found[0].sequences_ids[0])

    return {
        "speech-encode-30s": lambda: np.array(whisper.encode(given.features).to(ctranslate2.DataType.float32)),
        "speech-decode": decode,
        "speech-talk-5min": lambda: _text(whisper.transcribe(given.talk)[0]),
        "speech-mel-30s": lambda: whisper.feature_extractor(given.samples, padding=0),
    }


def transformers(given: Given, _: str) -> dict[str, Run]:
    """The calls of transformers on torch, with its fused attention."""
    import torch
    import transformers

    config, tensors = _weights(given.folder)
    settings = transformers.WhisperConfig(**config, attn_implementation="sdpa")
    model = transformers.WhisperForConditionalGeneration(settings).eval()
    state = {f"model.{name}": torch.from_numpy(array) for name, array in tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["proj_out.weight"], []), (missing, unexpected)
    model.tie_weights()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    features = torch.from_numpy(given.features)[None]
    extractor = transformers.WhisperFeatureExtractor()
    rows = model.model.encoder(features).last_hidden_state

    def decode() -> list[int]:
        cache, read, found = None, given.prompt, []
        for _ in range(NEW_TOKENS):
            out = model.model.decoder(
                torch.tensor([read]), encoder_hidden_states=rows, past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
            logits = model.proj_out(out.last_hidden_state[:, -1])[0]
            logits[given.end] = -torch.inf
            read = [int(logits.argmax())]
            found += read
        return found

    return {
        "speech-encode-30s": lambda: model.model.encoder(features).last_hidden_state.numpy(),
        "speech-decode": decode,
        "speech-mel-30s": lambda: extractor(given.samples, sampling_rate=RATE, return_tensors="np").input_features[0],
    }


def openai_whisper(given: Given, _: str) -> dict[str, Run]:
    """The calls of openai-whisper, which computes by torch."""
    import torch
    import whisper

    config, tensors = _weights(given.folder)
    names = (
        *("num_mel_bins", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers"),
        *("vocab_size", "max_target_positions", "d_model", "decoder_attention_heads", "decoder_layers"),
    )
    model = whisper.model.Whisper(whisper.model.ModelDimensions(*(config[name] for name in names))).eval()
    state = {}
    for name, array in tensors.items():
        for theirs, own in _IN_OPENAI:
            name = name.replace(theirs, own)
        state[name] = torch.from_numpy(array)
    model.load_state_dict(state)
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    features = torch.from_numpy(given.features)[None]
    rows = model.encoder(features)

    def decode() -> list[int]:
        cache, hooks = model.install_kv_cache_hooks()
        read, found = given.prompt, []
        for _ in range(NEW_TOKENS):
            logits = model.decoder(torch.tensor([read]), rows, kv_cache=cache)[0, -1]
            logits[given.end] = -torch.inf
            read = [int(logits.argmax())]
            found += read
        for hook in hooks:
            hook.remove()
        return found

    def talk() -> str:
        return str(whisper.transcribe(model, given.talk, beam_size=5, best_of=5, language="en", fp16=False)["text"])

    return {
        "speech-encode-30s": lambda: model.encoder(features).numpy(),
        "speech-decode": decode,
        "speech-talk-5min": talk,
        "speech-mel-30s": lambda: whisper.log_mel_spectrogram(given.samples).numpy(),
    }


PROGRAMS: dict[str, tuple[Callable[[Given, Any], dict[str, Run]], str | None]] = {
    "mha_native": (ours, None),
    "mha_native, int8": (ours, "int8"),
    "faster-whisper": (faster_whisper, "float32"),
    "faster-whisper, int8": (faster_whisper, "int8"),
    "transformers": (transformers, "float32"),
    "openai-whisper": (openai_whisper, "float32"),
}


def _text(segments: Any) -> str:
    return "".join(segment.text for segment in segments)


def _weights(folder: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the config and the tensors of a folder of CTranslate2, as transformers names them."""
    source = CTranslate2Source(Path(folder))
    with CTranslate2File(source.path) as file:
        # Keys have a bias of zeros there, and the output weights are the embeddings.
        names = [name for name in file.entries if not name.endswith(("k_proj.bias", "proj_out.weight"))]
        tensors = {name: np.ascontiguousarray(file.read(name), np.float32) for name in names}
    return {name: value for name, value in source.config.items() if name != "model_type"}, tensors


def _work(name: str, folder: str, recording: str, threads: int, connection: Connection) -> None:
    """Answer the names of cases by seconds and results; None ends the process."""
    make, stored = PROGRAMS[name]
    try:
        calls = make(Given(folder, recording, threads), stored)
    except ImportError as error:
        connection.send(f"{name} is left out: {error}")
        return
    connection.send(list(calls))
    while (case := connection.recv()) is not None:
        start = time.perf_counter()
        result = calls[case]()
        connection.send((time.perf_counter() - start, result))


def main(folder: str, recording: str, *chosen: str) -> None:
    """Print the median seconds of each program, and how many times as long as this library each one takes."""
    context = multiprocessing.get_context("spawn")
    for threads in (1, 2):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        connections: dict[str, Connection] = {}
        cases: dict[str, list[str]] = {}
        for name in PROGRAMS:
            here, there = context.Pipe()
            context.Process(target=_work, args=(name, folder, recording, threads, there), daemon=True).start()
            there.close()
            answer = here.recv()
            if isinstance(answer, str):
                print(answer)
            else:
                connections[name], cases[name] = here, answer
        for case in chosen or CASES:
            _print(case, threads, {name: link for name, link in connections.items() if case in cases[name]})
        for link in connections.values():
            link.send(None)


def _print(case: str, threads: int, connections: dict[str, Connection]) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in connections}
    results: dict[str, Any] = {}
    begin = time.perf_counter()
    for turn in range(ROUNDS):
        for name, link in connections.items():
            link.send(case)
            taken, results[name] = link.recv()
            if turn or time.perf_counter() - begin > MOST_SECONDS:  # the first call of all also warms up
                seconds[name].append(taken)
        if all(seconds.values()) and time.perf_counter() - begin > MOST_SECONDS:
            break
    medians = {name: statistics.median(turns) for name, turns in seconds.items()}
    print(f"\n{case}, {threads} {'thread' if threads == 1 else 'threads'}, {len(seconds['mha_native'])} rounds")
    for name, median in medians.items():
        own = medians["mha_native, int8" if name.endswith("int8") else "mha_native"]
        note = _agreement(results[name], results["mha_native"])
        print(f"  {name:22} {1e3 * median:10.2f} ms {median / own:6.2f} times  {note}", flush=True)


def _agreement(result: Any, own: Any) -> str:
    if isinstance(result, str):
        return f"{len(result.split())} words, {'the same text' if result == own else 'another text'}"
    if isinstance(result, list):
        return f"{len(result)} tokens, {'the same' if result == own else 'others'}"
    error = float(np.abs(np.reshape(result, np.shape(own)) - own).max())
    return f"largest difference {error:.1e}"


if __name__ == "__main__":
    main(*sys.argv[1:])
