// A row of bench/cases.toml: its sizes and its work. The twin of bench/mha_native_bench/cases/case.py.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "mha/tensor_view.hpp"
#include "mha/weight_format.hpp"

namespace mha::bench {

/// The fields are the columns of cases.toml, which explains them; Dv is D.
struct Case {
  std::string name, kind, dtype, weights, cache, pages, against, activation, family;
  Index B = 0, H = 0, Hk = 0, Tq = 0, Tk = 0, D = 0, E = 0, F = 0;
  Index X = 0, used = 0;  // experts of a layer, and experts that a row chooses
  Index layers = 1;
  Index V = 0;
  bool causal = false;
  Index shortest = 0;
  std::array<Index, 2> window = {-1, -1};
  Index admitted = 0;  // 0: no mask
  double softcap = 0;
  bool alibi = false;
  Index blocks = 0;               // of keys, one of which each block of queries sees; 0: no block mask
  Index prefix = 0;               // tokens that are the same in all sequences of a cache
  double scores = 1, values = 1;  // standard deviations
  bool cold = false;
  bool texts = false;                 // as for sentences that are tokens: what begins with texts is not measured in C++
  bool pairs = false;                 // of texts
  bool sparse = false;                // embeddings; with `texts`
  bool quick = false, extra = false;  // of runs with other libraries

  DType element() const;
  WeightFormat weight_format() const;
  /// Of a weight, as it is kept.
  double weight_bytes() const;
  /// Of keys and values between the steps of a decoder.
  DType cached() const;
  /// The element type of most products: int8 in a layer with int8 or int4 weights, whose projections they are.
  DType product() const { return has_scales(weight_format()) ? DType::int8 : element(); }
  bool has_options() const {
    return causal || window[0] >= 0 || window[1] >= 0 || admitted > 0 || softcap > 0 || alibi;
  }

  /// Whether this is measured from Python alone: gradients, experts, ModernBERT, a decoder, a linear map, late
  /// interaction, attention over a cache or with a block mask.
  bool is_of_python() const {
    const bool is_one = kind == "decoder" || kind == "images" || kind == "cached" || kind == "experts" ||
                        kind == "linear" || kind == "maxsim";
    return is_one || is_backward() || blocks > 0 || !family.empty();
  }
  bool is_backward() const { return kind == "attention_backward" || kind == "linear_backward" || kind == "training"; }
  /// Whether sequences may differ in length.
  bool is_ragged() const { return kind == "ragged" || kind == "sentences"; }
  /// Where the sequences begin, and the end of the last; lengths of a ragged batch rise evenly, and are shuffled.
  std::vector<std::int64_t> offsets() const;
  /// Whether a layer attends to another sequence than its own.
  bool is_cross() const { return kind == "mha" && Tk != Tq; }
  /// Of all sequences.
  Index queries() const { return is_ragged() ? Index(offsets().back()) : B * Tq; }

  /// Query-key pairs that take part in one head, in all batch elements, counted row by row.
  double visible_pairs() const;
  /// Of a layer: 2 D for a score and 2 D for a weighted value of each visible pair; 2 E^2 for each row of four
  /// projections, of which keys and values are of the memory, 2 E F for each of the two of the feed-forward.
  double flops() const;
  /// Memory to be read or written at least once: inputs, weights, result.
  double least_bytes() const;
  /// What the largest error must stay below, `largest` being the largest number of the result: as in
  /// bench/mha_native_bench/cases/oracle.py, which says why.
  double tolerance(double largest) const;
  double key_value_bytes() const { return 2.0 * double(B * Hk * Tk * D) * size_of(element()); }
};

/// All rows, with what they leave out put in.
/// @throws std::invalid_argument if a row breaks the rules of the file
const std::vector<Case>& cases();

}  // namespace mha::bench
