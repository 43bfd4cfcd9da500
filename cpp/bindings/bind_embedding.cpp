// The two ends of an encoder over texts: embed_tokens and mean_pool.
#include <mha/embedding.hpp>

#include <vector>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

py::object embed_tokens(py::handle tokens, py::handle places, py::handle cu_seqlens, py::handle words,
                        py::handle positions, py::handle norm_weight, py::handle norm_bias, py::handle norm_eps,
                        py::handle out, py::handle num_threads) {
  const char* const function = "embed_tokens";
  const Argument list[] = {
      {"words", words}, {"positions", positions}, {"norm_weight", norm_weight}, {"norm_bias", norm_bias},
      {"out", out},     {"tokens", tokens},       {"cu_seqlens", cu_seqlens},   {"places", places}};
  const ArrayArguments arrays(function, list);
  const EmbeddingTables tables = {arrays.tensor(0, 2, 2), arrays.tensor(1, 2, 2), arrays.optional_tensor(2, 1, 1),
                                  arrays.optional_tensor(3, 1, 1), real(function, "norm_eps", norm_eps, 0)};
  const ThreadsArgument threads(function, num_threads);
  const Index extents[] = {arrays.count_integers(5), tables.words.extents[1]};
  const NewArray result = arrays.given(4) ? NewArray{py::reinterpret_borrow<py::object>(out), arrays.output(4, 2, 2)}
                                          : arrays.new_array(tables.words.dtype, 2, extents);
  if (result.view.extents[0] != extents[0])
    throw py::value_error("embed_tokens: out must have a row for each token, " + std::to_string(extents[0]) + "; got " +
                          std::to_string(result.view.extents[0]));
  const std::vector<std::int64_t> ids = arrays.integers(5), offsets = arrays.offsets(6);
  const std::vector<std::int64_t> rows =
      arrays.given(7) ? arrays.integers(7, extents[0], "must have one for each token") : std::vector<std::int64_t>();
  warn_if_forked();
  without_gil([&] {
    embed_tokens(ids.data(), arrays.given(7) ? rows.data() : nullptr, offsets.data(),
                 static_cast<Index>(offsets.size()) - 1, tables, result.view, threads);
  });
  return result.array;
}

py::object mean_pool(py::handle x, py::handle cu_seqlens, py::handle normalize, py::handle out,
                     py::handle num_threads) {
  const char* const function = "mean_pool";
  const Argument list[] = {{"x", x}, {"cu_seqlens", cu_seqlens}, {"out", out}};
  const ArrayArguments arrays(function, list);
  const TensorView rows = arrays.tensor(0, 2, 2);
  const std::vector<std::int64_t> offsets = arrays.offsets(1);
  const bool scales = boolean(function, "normalize", normalize);
  const ThreadsArgument threads(function, num_threads);
  const Index batch_size = static_cast<Index>(offsets.size()) - 1;
  const Index extents[] = {batch_size, rows.extents[1]};
  const NewArray result = arrays.given(2) ? NewArray{py::reinterpret_borrow<py::object>(out), arrays.score_output(2, 2)}
                                          : arrays.new_array(accumulator_of(rows.dtype), 2, extents);
  warn_if_forked();
  without_gil([&] { mean_pool(rows, offsets.data(), batch_size, scales, result.view, threads); });
  return result.array;
}

py::object differentiate_table(py::handle ids, py::handle dout, py::handle num_embeddings, py::handle num_threads) {
  const char* const function = "embedding_gradient";
  const Argument list[] = {{"dout", dout}, {"ids", ids}};
  const ArrayArguments arrays(function, list);
  const TensorView rows = arrays.tensor(0, 1, kMaxRank);
  Index count = 1;
  for (int axis = 0; axis < rows.rank - 1; ++axis) count *= rows.extents[axis];
  const std::vector<std::int64_t> numbers = arrays.integers(1, count, "must have one for each row of dout");
  const Index extents[] = {positive(function, "num_embeddings", num_embeddings, 0), rows.extents[rows.rank - 1]};
  const ThreadsArgument threads(function, num_threads);
  const NewArray out = arrays.new_array(rows.dtype, 2, extents);
  warn_if_forked();
  without_gil([&] { embedding_gradient(numbers.data(), rows, out.view, threads); });
  return out.array;
}

}  // namespace

void bind_embedding(py::module_& m) {
  m.def("embed_tokens", &embed_tokens,
        "(tokens, places, cu_seqlens, words, positions, norm_weight, norm_bias, norm_eps, out, num_threads) -> out");
  m.def("embedding_gradient", &differentiate_table, "(ids, dout, num_embeddings, num_threads) -> gradient");
  m.def("mean_pool", &mean_pool, "(x, cu_seqlens, normalize, out, num_threads) -> out");
}

}  // namespace mha::bindings
