"""Many texts at once."""

from __future__ import annotations

import functools

import numpy as np

from mha_native.serving import Batcher, EncodeBatcher, EncodeRequest, Request

from . import classifiers
from .entry import Generator, Made, entry, some
from .language_models import MESSAGES, language_model


@functools.cache
def batcher() -> Batcher:
    """Requests that nobody steps wait until they are cancelled."""
    return Batcher(language_model(), max_sequences=2, num_pages=4, max_waiting=1 << 30)


@entry("Batcher constructor")
def _batcher(rng: Generator) -> Made:
    more = {
        "max_sequences": 3,
        "num_pages": 5,
        "page_size": 128,
        "tokens_per_step": 16,
        "share_prefixes": False,
        "cache_dtype": "int8",
        "num_threads": 2,
        "max_waiting": 4,
        "on_step": print,
    }
    small = {"max_sequences": 3, "num_pages": 5, "tokens_per_step": 16}
    return Batcher, {"model": language_model()} | small | some(rng, more)


@entry("Batcher.submit")
def _submit(rng: Generator) -> Made:
    prompt = "the é" if rng.random() < 0.5 else np.array([9, 3])
    more = {"timeout": 5.0, "on_text": print, "max_new_tokens": 3, "temperature": 0.7, "top_k": 5, "seed": 4}
    more |= {"stop": ["a", "bc"], "logprobs": 1, "prompt_logprobs": 0, "cache_salt": "a", "index": 2}
    return batcher().submit, {"prompt": prompt} | some(rng, more)


@entry("Batcher.submit_chat")
def _submit_chat(rng: Generator) -> Made:
    more = {"variables": {"tools": None}, "n": 2, "timeout": 5.0, "max_new_tokens": 3, "seed": 4, "cache_salt": "a"}
    return batcher().submit_chat, {"messages": MESSAGES} | some(rng, more)


def _done() -> Request:
    with_steps = Batcher(language_model(), max_sequences=1, num_pages=2)
    request = with_steps.submit(np.array([9, 3]), max_new_tokens=2)
    while with_steps.run_step():
        pass
    return request


@entry("Request.result")
def _result(_: Generator) -> Made:
    return _done().result, {"timeout": 1.0}


@entry("Request.completion")
def _completion(_: Generator) -> Made:
    return _done().completion, {"timeout": 1.0}


@functools.cache
def encode_batcher() -> EncodeBatcher:
    return EncodeBatcher(classifiers._text_classifier())


@entry("EncodeBatcher constructor")
def _encode_batcher(rng: Generator) -> Made:
    more = {"target_seconds": 0.01, "max_waiting": 4, "max_waiting_tokens": 100, "num_threads": 2}
    more |= {"max_batch_tokens": 99, "max_wait_seconds": 0.001}
    return EncodeBatcher, {"model": classifiers._text_classifier()} | some(rng, more)


@entry("EncodeBatcher.submit")
def _submit_texts(rng: Generator) -> Made:
    texts = ["the dog", ("a", "b c")] if rng.random() < 0.5 else "the dog"
    return encode_batcher().submit, {"texts": texts} | some(rng, {"function_to_apply": "none"})


@entry("EncodeBatcher.close")
def _close_encode_batcher(_: Generator) -> Made:
    batcher = EncodeBatcher(classifiers._text_classifier())
    batcher.submit("the dog")
    return batcher.close, {"timeout": 5.0}


def _ended_request() -> EncodeRequest:
    request = encode_batcher().submit("the dog")
    request.result()
    return request


@entry("EncodeRequest.result")
def _result_of_texts(_: Generator) -> Made:
    return _ended_request().result, {"timeout": 5.0}


@entry("EncodeRequest.exception")
def _exception_of_texts(_: Generator) -> Made:
    return _ended_request().exception, {"timeout": 5.0}
