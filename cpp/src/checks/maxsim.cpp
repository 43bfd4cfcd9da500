#include "checks/maxsim.hpp"

#include <stdexcept>
#include <string>

#include "checks/rules.hpp"
#include "kernels/kernel_table.hpp"
#include "views/describe.hpp"
#include "views/ragged_batch.hpp"

namespace mha {
namespace {

constexpr char kMaxSim[] = "maxsim", kQuantize[] = "quantize_tokens";

/// The names of an argument in messages.
struct Names {
  const char *tokens, *scale, *cu_seqlens;
};
constexpr Names kQueries = {"queries", "query_scale", "cu_seqlens_q"},
                kDocuments = {"documents", "document_scale", "cu_seqlens_k"};

void check_matrices(const Names& names, const TokenMatrices& matrices, Named both) {
  const TensorView &tokens = matrices.tokens, &scale = matrices.scale;
  check_rank(kMaxSim, names.tokens, tokens, 2, 2, both);
  if (matrices.count < 0 || matrices.cu_seqlens == nullptr)
    throw std::invalid_argument(std::string(kMaxSim) + ": " + names.cu_seqlens + " must be given");
  check_offsets(kMaxSim, names.cu_seqlens, matrices.cu_seqlens, matrices.count, names.tokens, tokens.extents[0]);
  check_tensor(kMaxSim, names.scale, scale);
  if ((tokens.dtype == DType::int8) != static_cast<bool>(scale))
    fail(kMaxSim, std::string(names.scale) + " must be given for int8, and for no other dtype", both);
  if (!scale) return;
  if (scale.dtype != DType::f32)
    throw DTypeError(std::string(kMaxSim) + ": " + names.scale + " must be float32; got " + name_of(scale.dtype));
  if (!has_shape(scale, {tokens.extents[0]}))
    fail(kMaxSim, std::string(names.scale) + " must have an entry for each token of " + names.tokens,
         {{names.tokens, tokens}, {names.scale, scale}});
}

void check_pairs(const MaxSimOptions& options, Index queries, Index documents) {
  for (Index i = 0; i < options.pair_count; ++i) {
    const QueryAndDocument& pair = options.pairs[i];
    const bool is_query = pair.query >= 0 && pair.query < queries;
    if (is_query && pair.document >= 0 && pair.document < documents) continue;
    throw std::invalid_argument(
        std::string(kMaxSim) + ": pairs must have numbers of " + (is_query ? "documents" : "queries") +
        ", at least 0 and less than " + std::to_string(is_query ? documents : queries) + "; got " +
        std::to_string(is_query ? pair.document : pair.query) + " in pair " + std::to_string(i));
  }
}

}  // namespace

void validate_maxsim(const TokenMatrices& queries, const TokenMatrices& documents, const MutableTensorView& scores,
                     const MaxSimOptions& options) {
  const TensorView &q = queries.tokens, &d = documents.tokens;
  const Named both = {{"queries", q}, {"documents", d}};
  check_matrices(kQueries, queries, both);
  check_matrices(kDocuments, documents, both);
  if (q.dtype == DType::boolean || q.dtype != d.dtype)
    throw DTypeError(std::string(kMaxSim) + ": queries and documents must have one dtype, for numbers; got " +
                     name_of(q.dtype) + " and " + name_of(d.dtype));
  if (q.extents[1] != d.extents[1]) fail(kMaxSim, "queries and documents must have as many features", both);
  if (q.dtype == DType::int8 && q.extents[1] > kMostInt8Features)
    fail(kMaxSim, "int8 vectors must have at most " + std::to_string(kMostInt8Features) + " features", both);

  const DType dtype = q.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (scores.dtype != dtype)
    throw DTypeError(std::string(kMaxSim) + ": scores must be float64 for float64, else float32; got " +
                     name_of(scores.dtype));
  if (options.pair_count < 0 || (options.pairs == nullptr && options.pair_count != 0))
    throw std::invalid_argument(std::string(kMaxSim) + ": pairs must be given, as many as pair_count");
  if (options.pairs != nullptr) {
    check_pairs(options, queries.count, documents.count);
    if (!has_shape(scores, {options.pair_count}))
      fail(kMaxSim, "scores must have an entry for each pair", {{"scores", scores}});
  } else if (!has_shape(scores, {queries.count, documents.count})) {
    fail(kMaxSim,
         "scores must be [queries, documents], " + std::to_string(queries.count) + " x " +
             std::to_string(documents.count),
         {{"scores", scores}});
  }
  check_output(kMaxSim, "scores", scores,
               {{"queries", q}, {"documents", d}, {"query_scale", queries.scale}, {"document_scale", documents.scale}});
}

void validate_quantize_tokens(const TensorView& x, const MutableTensorView& integers, const MutableTensorView& scale) {
  const Named all = {{"x", x}, {"integers", integers}, {"scale", scale}};
  check_rank(kQuantize, "x", x, 2, 2, all);
  const auto check_dtype = [](const char* name, const TensorView& view, DType dtype) {
    if (view.dtype != dtype)
      throw DTypeError(std::string(kQuantize) + ": " + name + " must be " + name_of(dtype) + "; got " +
                       name_of(view.dtype));
  };
  check_dtype("x", x, DType::f32);
  check_dtype("integers", integers, DType::int8);
  check_dtype("scale", scale, DType::f32);
  check_same_shape(kQuantize, "integers", integers, "x", x);
  if (!has_shape(scale, {x.extents[0]})) fail(kQuantize, "scale must have an entry for each row of x", all);
  check_output(kQuantize, "integers", integers, {{"x", x}});
  check_output(kQuantize, "scale", scale, {{"x", x}, {"integers", integers}});
  if (x.extents[1] > 1 && integers.strides[1] != 1)
    fail(kQuantize, "neighbours in a row of integers must be contiguous", all);
  if (x.extents[0] > 1 && scale.strides[0] != 1) fail(kQuantize, "scale must be contiguous", all);
}

}  // namespace mha
