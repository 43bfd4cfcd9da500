#include "checks/rotary.hpp"

#include "checks/rules.hpp"
#include "views/describe.hpp"

namespace mha {

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

void check_rotary_fits(const char* f, const RotaryEmbedding& rotary, DType dtype, Index head_dim) {
  if (rotary.dtype() != accumulator_of(dtype))
    throw DTypeError(std::string(f) + ": rotary of a layer in " + name_of(dtype) + " must be " +
                     name_of(accumulator_of(dtype)) + "; got " + name_of(rotary.dtype()));
  if (rotary.rotary_dim() > head_dim)
    throw std::invalid_argument(std::string(f) + ": rotary must turn no more features than a head has, " +
                                std::to_string(head_dim) + "; got " + std::to_string(rotary.rotary_dim()));
}

void check_positions(const char* f, const RotaryTable& rotary, const LayerArguments& a) {
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
    const std::int64_t offset = past ? past[b] : offsets ? offsets[b] : a.options.query_offset;
    const auto rows = [&](const std::int64_t* starts, const TensorView& view) {
      return ragged ? starts[b + 1] - starts[b] : a.new_lengths ? a.new_lengths[b] : view ? view.extents[1] : 0;
    };
    if (!a.appends_only)
      check(offset == 0 || past ? a.names.query : "query_offset", offset,
            rows(ragged ? ragged->cu_seqlens_q : nullptr, a.query), b);
    if (a.key) check(a.names.key, past ? past[b] : 0, rows(ragged ? ragged->cu_seqlens_k : nullptr, a.key), b);
  }
}

}  // namespace mha
