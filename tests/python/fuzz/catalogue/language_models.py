"""Language models."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny_language_model

from mha_native.models import CausalLM

from .entry import Arguments, Generator, Made, entry, some


@functools.cache
def _folder() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory()
    return folder, tiny_language_model.write(Path(folder.name))


@functools.cache
def language_model() -> CausalLM:
    return CausalLM.from_pretrained(_folder()[1])


def _prompts(rng: Generator) -> Any:
    return ["the é", [[5, 6], np.array([7])], ["the", "a b"], np.array([9, 3])][rng.integers(4)]


def _options(rng: Generator) -> Arguments:
    more = {
        "max_new_tokens": 3,
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {3: 1.5},
        "min_new_tokens": 2,
        "stop_token_ids": [7, 9],
        "ignore_eos": True,
        "seed": 4,
        "num_threads": 1,
    }
    drafts = [{}, {"draft": "prompt-lookup"}, {"draft": language_model(), "num_draft_tokens": 2}]
    return some(rng, more) | drafts[rng.integers(3)]


def _of_text(rng: Generator) -> Arguments:
    return some(rng, {"stop": ["a", "bc"], "stream": False})


MESSAGES = [{"role": "user", "content": "the"}]


@entry("CausalLM.from_pretrained")
def _from_pretrained(rng: Generator) -> Made:
    more = {"dtype": "float32", "weight_dtype": "int8", "max_length": 9}
    return CausalLM.from_pretrained, {"model": _folder()[1]} | some(rng, more)


@entry("CausalLM.generate")
def _generate(rng: Generator) -> Made:
    return language_model().generate, {"prompts": _prompts(rng)} | _options(rng) | _of_text(rng)


@entry("CausalLM.generate_tokens")
def _generate_tokens(rng: Generator) -> Made:
    return language_model().generate_tokens, {"prompts": _prompts(rng)} | _options(rng)


@entry("CausalLM.complete")
def _complete(rng: Generator) -> Made:
    more = some(rng, {"logprobs": 2, "prompt_logprobs": 0, "stop": ["a", "bc"]})
    return language_model().complete, {"prompts": _prompts(rng)} | _options(rng) | more


@entry("CausalLM.chat")
def _chat(rng: Generator) -> Made:
    return language_model().chat, {"messages": MESSAGES} | _options(rng) | _of_text(rng)


@entry("CausalLM.apply_chat_template")
def _apply_chat_template(rng: Generator) -> Made:
    return language_model().apply_chat_template, {"messages": MESSAGES} | some(rng, {"add_generation_prompt": False})


def _of_texts(name: str) -> Callable[[Generator], Made]:
    def make(rng: Generator) -> Made:
        return getattr(language_model(), name), {"texts": _prompts(rng)} | some(rng, {"num_threads": 1})

    return make


for _name in ("logits", "score"):
    entry(f"CausalLM.{_name}")(_of_texts(_name))


@entry("CausalLM.tokens_of")
def _tokens_of(rng: Generator) -> Made:
    return language_model().tokens_of, {"texts": ["a", "b"]} | some(rng, {"add_special_tokens": False})


@entry("CausalLM.count_tokens")
def _count_tokens(rng: Generator) -> Made:
    return language_model().count_tokens, {"texts": ["a", "b"]} | some(rng, {"add_special_tokens": False})


@entry("CausalLM.tokenize")
def _tokenize(rng: Generator) -> Made:
    return language_model().tokenize, {"texts": ["the é", ["a", "b"]][rng.integers(2)]} | some(
        rng, {"add_special_tokens": False}
    )


@entry("CausalLM.decode")
def _decode(_: Generator) -> Made:
    return language_model().decode, {"tokens": np.array([9, 3])}


@entry("CausalLM.astype")
def _astype(_: Generator) -> Made:
    return language_model().astype, {"dtype": "float16"}


@entry("CausalLM.quantize")
def _quantize(_: Generator) -> Made:
    return language_model().quantize, {"weight_dtype": "int8"}
