"""Gradients of the parts around attention, and what they are trained with."""

from __future__ import annotations

from typing import Any

import mha_native as mha
from mha_native import reference

from .entry import BATCH, CATALOGUE, FEATURES, Arguments, Generator, Made, Maker, dtype_of_call, entry, normal, some


def _norm(name: str) -> Maker:
    def make(rng: Generator) -> Made:
        dtype = dtype_of_call(rng)
        x, dout = (normal(rng, BATCH, 3, FEATURES, dtype=dtype) for _ in range(2))
        more: Arguments = {"eps": 1e-3, "wrt": ("x",), "num_threads": 2}
        if name.startswith("rms"):
            more["unit_offset"] = True
        arguments = {"x": x, "weight": normal(rng, FEATURES, dtype=dtype), "dout": dout}
        return getattr(mha, name), arguments | some(rng, more)

    return make


@entry("activation")
def _activation(rng: Generator) -> Made:
    dtype = dtype_of_call(rng)
    x, up = (normal(rng, BATCH, 3, FEATURES, dtype=dtype) for _ in range(2))
    return mha.activation, {"x": x, "activation": "gelu"} | some(rng, {"up": up, "num_threads": 2})


@entry("activation_gradient")
def _activation_gradient(rng: Generator) -> Made:
    arguments = _activation(rng)[1]
    return mha.activation_gradient, arguments | {"dout": normal(rng, *arguments["x"].shape, dtype=arguments["x"].dtype)}


def _reference_of(name: str, left_out: tuple[str, ...] = ("wrt", "num_threads")) -> Maker:
    def make(rng: Generator) -> Made:
        function: Any = getattr(reference, name)
        return function, {key: x for key, x in CATALOGUE[name](rng)[1].items() if key not in left_out}

    return make


for _name in ("layer_norm_gradient", "rms_norm_gradient"):
    CATALOGUE[_name] = _norm(_name)
for _name in ("layer_norm_gradient", "rms_norm_gradient", "activation_gradient"):
    CATALOGUE[f"reference.{_name}"] = _reference_of(_name)
