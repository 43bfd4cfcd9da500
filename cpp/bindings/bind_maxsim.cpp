// Late interaction.
#include <mha/maxsim.hpp>

#include <cstdint>
#include <vector>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

py::object compute_maxsim(py::handle queries, py::handle documents, py::handle cu_seqlens_q, py::handle cu_seqlens_k,
                          py::handle query_scale, py::handle document_scale, py::handle pair_queries,
                          py::handle pair_documents, py::handle given_out, py::handle num_threads) {
  const char* const function = "maxsim";
  const Argument list[] = {
      {"queries", queries},           {"documents", documents},     {"cu_seqlens_q", cu_seqlens_q},
      {"cu_seqlens_k", cu_seqlens_k}, {"query_scale", query_scale}, {"document_scale", document_scale},
      {"pairs", pair_queries},        {"pairs", pair_documents},    {"out", given_out}};
  const bool is_int8 = !query_scale.is_none() || !document_scale.is_none();
  const ArrayArguments arrays =
      is_int8 ? ArrayArguments(function, list, DType::f32, "scores") : ArrayArguments(function, list);
  const auto matrices = [&](int tokens, int scale, const std::vector<std::int64_t>& offsets) {
    return TokenMatrices{is_int8 ? arrays.int8_tensor(tokens, 2, 2) : arrays.tensor(tokens, 2, 2),
                         arrays.optional_tensor(scale, 1, 1), static_cast<Index>(offsets.size()) - 1, offsets.data()};
  };
  const std::vector<std::int64_t> q_offsets = arrays.offsets(2), k_offsets = arrays.offsets(3);
  const TokenMatrices q = matrices(0, 4, q_offsets), d = matrices(1, 5, k_offsets);
  MaxSimOptions options;
  std::vector<QueryAndDocument> pairs;
  if (arrays.given(6)) {
    const std::vector<std::int64_t> chosen = arrays.integers(6);
    const std::vector<std::int64_t> others = arrays.integers(7, static_cast<Index>(chosen.size()));
    pairs.reserve(chosen.size() + 1);  // data() of no pairs is not null
    for (std::size_t i = 0; i < chosen.size(); ++i) pairs.push_back({chosen[i], others[i]});
    options.pairs = pairs.data();
    options.pair_count = static_cast<Index>(pairs.size());
  }
  const ThreadsArgument threads(function, num_threads);
  options.num_threads = threads;

  const Index shape[] = {arrays.given(6) ? options.pair_count : q.count, d.count};
  const int rank = arrays.given(6) ? 1 : 2;
  const DType dtype = q.tokens.dtype == DType::f64 ? DType::f64 : DType::f32;
  const NewArray out = given_out.is_none()
                           ? arrays.new_array(dtype, rank, shape)
                           : NewArray{py::reinterpret_borrow<py::object>(given_out), arrays.score_output(8, rank)};
  warn_if_forked();
  without_gil([&] { maxsim(q, d, out.view, options); });
  return out.array;
}

py::object quantize(py::handle x, py::handle num_threads) {
  const char* const function = "quantize_tokens";
  const Argument list[] = {{"x", x}};
  const ArrayArguments arrays(function, list);
  const TensorView rows = arrays.tensor(0, 2, 2);
  const ThreadsArgument threads(function, num_threads);
  const NewArray integers = arrays.new_array(DType::int8, 2, rows.extents);
  const NewArray scale = arrays.new_array(DType::f32, 1, rows.extents);
  warn_if_forked();
  without_gil([&] { quantize_tokens(rows, integers.view, scale.view, threads); });
  return py::make_tuple(integers.array, scale.array);
}

}  // namespace

void bind_maxsim(py::module_& m) {
  m.def("maxsim", &compute_maxsim,
        "(queries, documents, cu_seqlens_q, cu_seqlens_k, query_scale, document_scale, pair_queries, pair_documents, "
        "out, num_threads) -> scores");
  m.def("quantize_tokens", &quantize, "(x, num_threads) -> (integers, scale)");
}

}  // namespace mha::bindings
