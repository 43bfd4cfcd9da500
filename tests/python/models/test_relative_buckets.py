"""The relative buckets of T5 and MPNet as `position_bias`: the bucket of each distance, and the bias of each head."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native import scaled_dot_product_attention
from mha_native.models.architecture.relative_buckets import position_bias_of_buckets

# Where each of the 16 buckets of a direction begins, with 32 buckets and distances up to 128.
STARTS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]


def _buckets(count: int = 32, max_distance: int = 128, longest: int = 600) -> list[int]:
    """Of the distances from -longest to longest: those that a table of bucket numbers gives."""
    numbers = np.arange(count, dtype=np.float32)[:, None]
    bias = position_bias_of_buckets(numbers, max_distance)
    assert bias.shape == (1, 2 * max_distance + 1)
    distances = np.arange(-longest, longest + 1)
    return [int(x) for x in bias[0, np.clip(distances, -max_distance, max_distance) + max_distance]]


def test_the_buckets_of_mpnet() -> None:
    one_way = [sum(start <= distance for start in STARTS) - 1 for distance in range(601)]
    assert _buckets() == one_way[:0:-1] + [0] + [16 + bucket for bucket in one_way[1:]]


@pytest.mark.parametrize(("count", "max_distance"), [(32, 128), (16, 128), (64, 128), (32, 256), (12, 100), (20, 50)])
def test_buckets_share_out_the_logarithms(count: int, max_distance: int) -> None:
    half, exact = count // 2, count // 4
    for distance, bucket in zip(range(-600, 601), _buckets(count, max_distance), strict=True):
        size, of_half = abs(distance), bucket - (half if distance > 0 else 0)
        if size < exact:
            assert of_half == size
            continue
        place = exact + (half - exact) * math.log(size / exact) / math.log(max_distance / exact)
        within = place - 1e-6 < of_half + 1 and of_half <= place + 1e-6  # a logarithm in float64 may round either way
        assert within or (of_half == half - 1 and place >= half)


def test_thousands_of_buckets_take_seconds() -> None:
    began = time.process_time()
    buckets = position_bias_of_buckets(np.arange(2048, dtype=np.float32)[:, None], 4096)[0, :4097]
    assert time.process_time() - began < 10
    assert (np.diff(buckets) <= 0).all()
    assert buckets[[0, -1]].tolist() == [1023, 0]


@pytest.mark.parametrize(("count", "max_distance"), [(32, 128), (16, 128), (64, 128), (32, 256), (12, 100)])
def test_the_buckets_of_transformers(count: int, max_distance: int) -> None:
    torch = pytest.importorskip("torch")
    mpnet = pytest.importorskip("transformers.models.mpnet.modeling_mpnet")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.arange(-600, 601)
    of_mpnet = mpnet.MPNetEncoder.relative_position_bucket(distances, count, max_distance)
    of_t5 = t5.T5Attention._relative_position_bucket(distances, True, count, max_distance)
    assert _buckets(count, max_distance) == of_mpnet.tolist() == of_t5.tolist()


def test_a_bias_for_each_head() -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((32, 3), dtype=np.float32)
    query, key, value = rng.standard_normal((3, 3, 300, 8), dtype=np.float32)
    rows = np.reshape(_buckets(longest=299), -1)
    distance = np.arange(300) - np.arange(300)[:, None]
    bias = table[rows[distance + 299]].transpose(2, 0, 1)  # [H, Tq, Tk]
    out = scaled_dot_product_attention(query, key, value, position_bias=position_bias_of_buckets(table))
    assert_same_bits(out, scaled_dot_product_attention(query, key, value, bias))
