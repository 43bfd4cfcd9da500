#include "checks/embedding.hpp"

#include <cmath>
#include <string>

#include "checks/rules.hpp"
#include "mha/errors.hpp"
#include "views/describe.hpp"
#include "views/ragged_batch.hpp"

namespace mha {
namespace {

void check_texts(const char* function, const std::int64_t* cu_seqlens, Index batch_size, const char* rows_of,
                 Index rows) {
  if (batch_size < 0)
    throw std::invalid_argument(std::string(function) + ": batch_size must not be negative; got " +
                                std::to_string(batch_size));
  check_offsets(function, "cu_seqlens", cu_seqlens, batch_size, rows_of, rows);
}

}  // namespace

void validate_embed_tokens(const std::int64_t* tokens, const std::int64_t* places, const std::int64_t* cu_seqlens,
                           Index batch_size, const EmbeddingTables& tables, const MutableTensorView& out) {
  const char* const function = "embed_tokens";
  const TensorView &words = tables.words, &positions = tables.positions;
  const Named inputs = {
      {"words", words}, {"positions", positions}, {"norm_weight", tables.norm_weight}, {"norm_bias", tables.norm_bias}};
  const Named views = {{"words", words},
                       {"positions", positions},
                       {"norm_weight", tables.norm_weight},
                       {"norm_bias", tables.norm_bias},
                       {"out", out}};
  check_dtypes(function, words.dtype, views);
  check_rank(function, "words", words, 2, 2, views);
  check_rank(function, "positions", positions, 2, 2, views);
  check_rank(function, "out", out, 2, 2, views);
  if (tables.norm_weight) check_rank(function, "norm_weight", tables.norm_weight, 1, 1, views);
  if (tables.norm_bias) check_rank(function, "norm_bias", tables.norm_bias, 1, 1, views);
  const Index width = words.extents[1];
  if (width < 1) fail(function, "words must have at least 1 feature", views);
  for (const auto& [name, view] : views) {
    if (!view) continue;
    if (view.extents[view.rank - 1] != width) fail(function, std::string(name) + " must be as wide as words", views);
    if (width > 1 && view.strides[view.rank - 1] != 1)
      fail(function, std::string(name) + " must have neighbours along E next to each other", views);
  }
  if (!(tables.norm_eps >= 0 && std::isfinite(tables.norm_eps)))
    throw std::invalid_argument(std::string(function) + ": norm_eps must be at least 0, and finite; got " +
                                text_of(tables.norm_eps));
  if (const DType sums = accumulator_of(out.dtype); !is_zero_or_normal(tables.norm_eps, sums))
    throw std::invalid_argument(std::string(function) + ": norm_eps must be " + zero_or_normal(sums) + "; got " +
                                text_of(tables.norm_eps));
  check_texts(function, cu_seqlens, batch_size, "out", out.extents[0]);
  if (tokens == nullptr && out.extents[0] > 0) fail(function, "tokens must be given, not be a null pointer", views);
  const Index rows = positions.extents[0];
  for (Index b = 0; places == nullptr && b < batch_size; ++b)
    if (cu_seqlens[b + 1] - cu_seqlens[b] > rows)
      fail(function,
           "a text must have no more tokens than positions has rows, and text " + std::to_string(b) + " has " +
               std::to_string(cu_seqlens[b + 1] - cu_seqlens[b]),
           views);
  for (Index i = 0; i < out.extents[0]; ++i)
    if (tokens[i] < 0 || tokens[i] >= words.extents[0])
      fail(function,
           "tokens must be rows of words, and token " + std::to_string(i) + " is " + std::to_string(tokens[i]), views);
  for (Index i = 0; places != nullptr && i < out.extents[0]; ++i)
    if (places[i] < 0 || places[i] >= rows)
      fail(function,
           "places must be rows of positions, and that of token " + std::to_string(i) + " is " +
               std::to_string(places[i]),
           views);
  check_output(function, "out", out, inputs);
}

Index validate_embedding_gradient(const std::int64_t* ids, const TensorView& dout, const MutableTensorView& out) {
  const char* const function = "embedding_gradient";
  const Named views = {{"dout", dout}, {"out", out}};
  check_dtypes(function, dout.dtype, views);
  check_rank(function, "dout", dout, 1, kMaxRank, views);
  check_rank(function, "out", out, 2, 2, views);
  if (out.extents[1] != dout.extents[dout.rank - 1]) fail(function, "out must be as wide as dout", views);
  Index rows = 1;
  for (int axis = 0; axis < dout.rank - 1; ++axis) rows *= dout.extents[axis];
  if (ids == nullptr && rows > 0) fail(function, "ids must be given, not be a null pointer", views);
  for (Index i = 0; i < rows; ++i)
    if (ids[i] < 0 || ids[i] >= out.extents[0])
      throw std::invalid_argument(std::string(function) + ": ids must be at least 0 and less than num_embeddings, " +
                                  std::to_string(out.extents[0]) + "; got " + std::to_string(ids[i]) + " for row " +
                                  std::to_string(i));
  check_output(function, "out", out, {{"dout", dout}});
  return rows;
}

void validate_mean_pool(const TensorView& x, const std::int64_t* cu_seqlens, Index batch_size,
                        const MutableTensorView& out) {
  const char* const function = "mean_pool";
  const Named views = {{"x", x}, {"out", out}};
  check_dtypes(function, x.dtype, {{"x", x}});
  if (out.dtype != accumulator_of(x.dtype))
    throw DTypeError(std::string(function) + ": out must be float64 for x in float64, else float32; got " +
                     dtypes_of(views));
  check_rank(function, "x", x, 2, 2, views);
  check_texts(function, cu_seqlens, batch_size, "x", x.extents[0]);
  if (!has_shape(out, {batch_size, x.extents[1]}))
    fail(function, "out must be [" + std::to_string(batch_size) + ", " + std::to_string(x.extents[1]) + "]", views);
  check_output(function, "out", out, {{"x", x}});
}

}  // namespace mha
