#include "checks/rotary.hpp"

#include "checks/rules.hpp"
#include "views/describe.hpp"
#include "views/ragged_batch.hpp"

namespace mha {
namespace {

/// Those that the caller gives, of all rows that are no padding.
void check_given_positions(const char* f, const RotaryTable& rotary, const LayerArguments& a) {
  const Index batch = a.query.extents[0], length = a.query.extents[1];
  if (a.key && a.key.extents[1] != length)
    fail(f, "positions are those of query and key, which must have one length", {{"query", a.query}, {"key", a.key}});
  for (Index b = 0; b < batch; ++b)
    for (Index i = 0; i < (a.new_lengths ? a.new_lengths[b] : length); ++i)
      if (const std::int64_t given = a.options.positions[b * length + i]; given < 0 || given >= rotary.max_positions)
        throw std::invalid_argument(std::string(f) + ": positions must be positions of rotary, 0 to " +
                                    std::to_string(rotary.max_positions - 1) + "; got " + std::to_string(given) +
                                    " for row " + std::to_string(i) +
                                    (a.ragged ? "" : " of batch element " + std::to_string(b)));
}

}  // namespace

void validate_rotary(const TensorView& cos, const TensorView& sin) {
  constexpr char f[] = "RotaryEmbedding";
  const Named views = {{"cos", cos}, {"sin", sin}};
  check_dtypes(f, cos.dtype, views);
  if (accumulator_of(cos.dtype) != cos.dtype)
    throw DTypeError(std::string(f) + ": cos and sin must be float32 or float64; got " + dtypes_of(views));
  check_rank(f, "cos", cos, 2, 2, views);
  check_rank(f, "sin", sin, 2, 2, views);
  if (cos.extents[0] < 1 || cos.extents[1] < 1) fail(f, "cos must not be empty", views);
  if (!has_shape(sin, {cos.extents[0], cos.extents[1]})) fail(f, "sin must have the shape of cos", views);
}

void validate_rotate(const RotaryTable& rotary, const TensorView& x, const std::int64_t* positions,
                     const MutableTensorView& out, bool backwards) {
  const char *const f = backwards ? "RotaryEmbedding.gradient" : "RotaryEmbedding", *const name =
                                                                                        backwards ? "dout" : "x";
  const Named views = {{name, x}, {"out", out}};
  check_rank(f, name, x, 2, kMaxRank, views);
  check_dtypes(f, x.dtype, views);
  if (accumulator_of(x.dtype) != rotary.dtype)
    throw DTypeError(std::string(f) + ": the table of " + name + " in " + name_of(x.dtype) + " must be " +
                     name_of(accumulator_of(x.dtype)) + "; got " + name_of(rotary.dtype));
  const Index features = x.extents[x.rank - 1];
  if (features < 2 * rotary.num_pairs)
    fail(f,
         std::string(name) + " must have at least the features that are rotated, " +
             std::to_string(2 * rotary.num_pairs),
         {{name, x}});
  check_rows_output(f, x, out);
  const Index batch = x.rank == kMaxRank ? x.extents[0] : 1, length = x.extents[x.rank - 2];
  const auto check_position = [&](std::int64_t position) {
    if (position < 0 || position >= rotary.max_positions)
      throw std::invalid_argument(std::string(f) + ": positions must be positions of the table, 0 to " +
                                  std::to_string(rotary.max_positions - 1) + "; got " + std::to_string(position));
  };
  if (!positions && length > 0) check_position(length - 1);
  for (Index i = 0; positions && i < batch * length; ++i) check_position(positions[i]);
}

void check_steps(const char* f, const QueryKeySteps& steps, DType dtype, const MultiHeadAttentionConfig& sizes) {
  const Index head_dim = sizes.head_dim;
  const auto check_dtype = [&](const char* name, DType given, DType expected) {
    if (given != expected)
      throw DTypeError(std::string(f) + ": " + name + " of a layer in " + name_of(dtype) + " must be " +
                       name_of(expected) + "; got " + name_of(given));
  };
  const auto wrong = [&](const std::string& rule, Index given) {
    throw std::invalid_argument(std::string(f) + ": " + rule + ", " + std::to_string(head_dim) + "; got " +
                                std::to_string(given));
  };
  const auto check_norm = [&](const char* name, const std::optional<Norm>& norm, Index heads) {
    if (!norm) return;
    check_dtype(name, norm->dtype(), dtype);
    if (norm->embed_dim() != head_dim && norm->embed_dim() != heads * head_dim)
      wrong(name + std::string(" must have the features of all heads, ") + std::to_string(heads * head_dim) +
                ", or of a head",
            norm->embed_dim());
  };
  check_norm("query_norm", steps.query_norm, sizes.num_heads);
  check_norm("key_norm", steps.key_norm, sizes.num_kv_heads);
  if (!steps.rotary) return;
  check_dtype("rotary", steps.rotary->dtype(), accumulator_of(dtype));
  if (steps.rotary->rotary_dim() > head_dim)
    wrong("rotary must turn no more features than a head has (head_dim, or embed_dim / num_heads)",
          steps.rotary->rotary_dim());
}

void refuse_positions(const char* f, const AttentionOptions& options) {
  if (options.positions)
    throw std::invalid_argument(std::string(f) + ": positions must not be given without rotary, which turns by them");
}

void check_positions(const char* f, const RotaryTable& rotary, const LayerArguments& a) {
  if (a.options.positions) return check_given_positions(f, rotary, a);
  const auto check = [&](const char* name, std::int64_t first, std::int64_t rows, Index b) {
    if (rows == 0 || (first >= 0 && first <= rotary.max_positions - rows)) return;
    throw std::invalid_argument(std::string(f) + ": " + name + " must stand at positions of rotary, 0 to " +
                                std::to_string(rotary.max_positions - 1) + "; got " + std::to_string(rows) +
                                " rows from position " + std::to_string(first) + " on in batch element " +
                                std::to_string(b));
  };
  const std::int64_t *const past = a.grows ? a.grows->lengths() : nullptr, *const offsets = a.options.query_offsets;
  const RaggedBatch* const ragged = a.ragged;
  const Index sequences = ragged ? ragged->size : a.query.extents[0];
  for (Index b = 0; b < sequences; ++b) {
    const std::int64_t before = past ? past[ragged ? sequence_of(*ragged, b) : b] : 0;
    const std::int64_t offset = past ? before : offsets ? offsets[b] : a.options.query_offset;
    const auto rows = [&](const std::int64_t* starts, const TensorView& view) {
      return ragged ? starts[b + 1] - starts[b] : a.new_lengths ? a.new_lengths[b] : view ? view.extents[1] : 0;
    };
    if (!a.appends_only)
      check(offset == 0 || past ? a.names.query : "query_offset", offset,
            rows(ragged ? ragged->cu_seqlens_q : nullptr, a.query), b);
    if (a.key) check(a.names.key, before, rows(ragged ? ragged->cu_seqlens_k : nullptr, a.key), b);
  }
}

}  // namespace mha
