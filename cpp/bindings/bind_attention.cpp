// scaled_dot_product_attention, its ragged twin, their gradients, attention_weights and attention_statistics.
#include <utility>

#include <mha/attention_gradient.hpp>
#include <mha/attention_statistics.hpp>
#include <mha/varlen.hpp>

#include "array_view.hpp"
#include "bindings.hpp"
#include "ragged_argument.hpp"
#include "scalars.hpp"
#include "score_options.hpp"
#include "shared_cache.hpp"
#include "wanted.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

Index batch_size_of(const TensorView& query) { return query.rank == kMaxRank ? query.extents[0] : 1; }

// `query` with the batch axis of the result: the axis of `key`, if its own has one element or is missing.
TensorView with_batch_of(const TensorView& key, TensorView query) {
  const Index batch = batch_size_of(key);
  if (batch_size_of(query) != 1 || batch == 1) return query;
  for (int axis = kMaxRank - 1, from = query.rank - 1; axis > 0; --axis, --from) {
    query.extents[axis] = from >= 0 ? query.extents[from] : 1;
    query.strides[axis] = from >= 0 ? query.strides[from] : 0;
  }
  query.rank = kMaxRank;
  query.extents[0] = batch;
  query.strides[0] = 0;
  return query;
}

ScoreStage stage_called(const char* function, py::handle name) {
  constexpr std::pair<const char*, ScoreStage> kStages[] = {{"weights", ScoreStage::weights},
                                                            {"scaled", ScoreStage::scaled},
                                                            {"capped", ScoreStage::capped},
                                                            {"masked", ScoreStage::masked}};
  const char* const rule = "'scaled', 'capped', 'masked' or 'weights'";
  if (!PyUnicode_Check(name.ptr())) throw py::type_error(describe(function, "stage", rule, name));
  for (const auto& [known, stage] : kStages)
    if (PyUnicode_CompareWithASCIIString(name.ptr(), known) == 0) return stage;
  throw py::value_error(describe(function, "stage", rule, name));
}

// The cache that stands in place of an array of keys, or null.
SharedCache* cache_or_null(py::handle key) {
  return is_array(key) || !py::isinstance<SharedCache>(key) ? nullptr : &py::cast<SharedCache&>(key);
}

// The options of a call over a cache. Where queries are the last tokens unless query_offset is given, a given 0 is one.
struct OptionsOverCache : ScoreOptions {
  OptionsOverCache(const GivenOptions& given, const ArrayArguments& arrays, int first, py::handle given_threads,
                   Index batch_size)
      : ScoreOptions(given, arrays, first, given_threads, batch_size) {
    if (!given.has(option::query_offset) || query_offsets) return;
    same_offsets.assign(static_cast<std::size_t>(batch_size), query_offset);
    query_offsets = same_offsets.data();
  }

  std::vector<std::int64_t> same_offsets;
};

py::object attend_over(SharedCache& shared, py::handle query, py::handle value, const py::dict& given_options,
                       py::handle return_lse, py::handle out, py::handle num_threads) {
  const char* const function = "scaled_dot_product_attention";
  if (!value.is_none())
    throw py::value_error(std::string(function) + ": value must not be given with a cache, which has the values");
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query}, {"out", out}});
  const ArrayArguments arrays(function, list);
  const TensorView q = arrays.tensor(0, 2, kMaxRank);
  const OptionsOverCache options(given, arrays, 2, num_threads, batch_size_of(q));
  const bool with_lse = boolean(function, "return_lse", return_lse);

  const CacheUse use(shared, CacheUse::reads);
  const NewArray result = output_or_new(arrays, 1, out, 2, kMaxRank, q, shared.cache.config().value_head_dim);
  const NewArray lse = with_lse ? arrays.new_array(accumulator_of(q.dtype), q.rank - 1, q.extents) : NewArray{};
  warn_if_forked();
  without_gil([&] { scaled_dot_product_attention(q, std::as_const(shared.cache), result.view, lse.view, options); });
  if (!with_lse) return result.array;
  return py::make_tuple(result.array, lse.array);
}

py::object attend(py::handle query, py::handle key, py::handle value, const py::dict& given_options,
                  py::handle return_lse, py::handle out, py::handle num_threads) {
  const char* const function = "scaled_dot_product_attention";
  if (SharedCache* const cache = cache_or_null(key))
    return attend_over(*cache, query, value, given_options, return_lse, out, num_threads);
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query}, {"key", key}, {"value", value}, {"out", out}});
  const ArrayArguments arrays(function, list);
  const TensorView k = arrays.tensor(1, 2, kMaxRank), q = with_batch_of(k, arrays.tensor(0, 2, kMaxRank));
  const TensorView v = arrays.tensor(2, 2, kMaxRank);
  const ScoreOptions options(given, arrays, 4, num_threads, batch_size_of(q));
  const bool with_lse = boolean(function, "return_lse", return_lse);

  const NewArray result = output_or_new(arrays, 3, out, 2, kMaxRank, q, v.extents[v.rank - 1]);
  const NewArray lse = with_lse ? arrays.new_array(accumulator_of(q.dtype), q.rank - 1, q.extents) : NewArray{};
  warn_if_forked();
  without_gil([&] { scaled_dot_product_attention(q, k, v, result.view, lse.view, options); });
  if (!with_lse) return result.array;
  return py::make_tuple(result.array, lse.array);
}

py::object attend_varlen(py::handle query, py::handle key, py::handle value, py::handle cu_seqlens_q,
                         py::handle cu_seqlens_k, const py::dict& given_options, py::handle return_lse, py::handle out,
                         py::handle num_threads) {
  const char* const function = "scaled_dot_product_attention_varlen";
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query},
                                         {"key", key},
                                         {"value", value},
                                         {"cu_seqlens_q", cu_seqlens_q},
                                         {"cu_seqlens_k", cu_seqlens_k},
                                         {"out", out}});
  const ArrayArguments arrays(function, list);
  const TensorView q = arrays.tensor(0, 3, 3);
  const TensorView k = arrays.tensor(1, 3, 3);
  const TensorView v = arrays.tensor(2, 3, 3);
  const RaggedArgument batch(arrays, 3, 4);
  const ScoreOptions options(given, arrays, 6, num_threads, batch.size);
  const bool with_lse = boolean(function, "return_lse", return_lse);

  const NewArray result = output_or_new(arrays, 5, out, 2, kMaxRank, q, v.extents[2]);
  const NewArray lse = with_lse ? arrays.new_array(accumulator_of(q.dtype), 2, q.extents) : NewArray{};
  warn_if_forked();
  without_gil([&] { scaled_dot_product_attention_varlen(q, k, v, batch, result.view, lse.view, options); });
  if (!with_lse) return result.array;
  return py::make_tuple(result.array, lse.array);
}

py::object weigh_over(SharedCache& shared, py::handle query, const py::dict& given_options, py::handle stage,
                      py::handle out, py::handle num_threads) {
  const char* const function = "attention_weights";
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query}, {"out", out}});
  const ArrayArguments arrays(function, list);
  const TensorView q = arrays.tensor(0, 2, kMaxRank);
  const OptionsOverCache options(given, arrays, 2, num_threads, batch_size_of(q));
  const ScoreStage last = stage_called(function, stage);

  const CacheUse use(shared, CacheUse::reads);
  const NewArray result = output_or_new(arrays, 1, out, 2, kMaxRank, q, shared.cache.longest());
  warn_if_forked();
  without_gil([&] { attention_weights(q, std::as_const(shared.cache), result.view, options, last); });
  return result.array;
}

py::object weigh(py::handle query, py::handle key, const py::dict& given_options, py::handle stage, py::handle out,
                 py::handle num_threads) {
  const char* const function = "attention_weights";
  if (SharedCache* const cache = cache_or_null(key))
    return weigh_over(*cache, query, given_options, stage, out, num_threads);
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query}, {"key", key}, {"out", out}});
  const ArrayArguments arrays(function, list);
  const TensorView k = arrays.tensor(1, 2, kMaxRank), q = with_batch_of(k, arrays.tensor(0, 2, kMaxRank));
  const ScoreOptions options(given, arrays, 3, num_threads, batch_size_of(q));
  const ScoreStage last = stage_called(function, stage);

  const NewArray result = output_or_new(arrays, 2, out, 2, kMaxRank, q, k.extents[k.rank - 2]);
  warn_if_forked();
  without_gil([&] { attention_weights(q, k, result.view, options, last); });
  return result.array;
}

// The statistics of a call of `observe(results)` for queries q and `keys` keys.
template <class Observe>
py::object new_statistics(const ArrayArguments& arrays, const TensorView& q, Index keys, const Observe& observe) {
  const int rank = q.rank - 1;
  const DType dtype = accumulator_of(q.dtype);
  Index key_extents[kMaxRank];
  for (int axis = 0; axis < rank; ++axis) key_extents[axis] = axis + 1 < rank ? q.extents[axis] : keys;
  const NewArray entropy = arrays.new_array(dtype, rank, q.extents),
                 max_weight = arrays.new_array(dtype, rank, q.extents),
                 mean_distance = arrays.new_array(dtype, rank, q.extents),
                 received_weight = arrays.new_array(dtype, rank, key_extents);
  const NewIntegers max_key = new_integers(rank, q.extents);
  warn_if_forked();
  without_gil(
      [&] { observe({entropy.view, max_weight.view, max_key.data, mean_distance.view, received_weight.view}); });
  return py::make_tuple(entropy.array, max_weight.array, max_key.array, mean_distance.array, received_weight.array);
}

py::object observe(py::handle query, py::handle key, const py::dict& given_options, py::handle num_threads) {
  const char* const function = "attention_statistics";
  const GivenOptions given(function, given_options);
  if (SharedCache* const shared = cache_or_null(key)) {
    const auto list = with_options(given, {{"query", query}});
    const ArrayArguments arrays(function, list);
    const TensorView q = arrays.tensor(0, 2, kMaxRank);
    const OptionsOverCache options(given, arrays, 1, num_threads, batch_size_of(q));
    const CacheUse use(*shared, CacheUse::reads);
    return new_statistics(arrays, q, shared->cache.longest(), [&](const AttentionStatistics& results) {
      attention_statistics(q, std::as_const(shared->cache), results, options);
    });
  }
  const auto list = with_options(given, {{"query", query}, {"key", key}});
  const ArrayArguments arrays(function, list);
  const TensorView k = arrays.tensor(1, 2, kMaxRank), q = with_batch_of(k, arrays.tensor(0, 2, kMaxRank));
  const ScoreOptions options(given, arrays, 2, num_threads, batch_size_of(q));
  return new_statistics(arrays, q, k.extents[k.rank - 2],
                        [&](const AttentionStatistics& results) { attention_statistics(q, k, results, options); });
}

// The arguments that have gradients, in the order of AttentionGradients.
constexpr const char* kDifferentiable[] = {"query",        "key",           "value", "attn_mask",
                                           "alibi_slopes", "position_bias", "sinks"};
constexpr int kNumDifferentiable = static_cast<int>(std::size(kDifferentiable));
using WantedArguments = Wanted<kNumDifferentiable>;

// New arrays for the gradients that are wanted. Keys and values have the batch size of the call.
struct NewGradients {
  NewGradients(const WantedArguments& wanted, const ArrayArguments& arguments, const TensorView& q, const TensorView& k,
               const TensorView& v, const ScoreOptions& options) {
    const DType sums = accumulator_of(q.dtype);
    const TensorView views[] = {q,
                                with_batch_of(q, k),
                                with_batch_of(q, v),
                                options.attn_mask,
                                options.alibi_slopes,
                                options.position_bias,
                                options.sinks};
    MutableTensorView* const targets[] = {&gradients.query,     &gradients.key,          &gradients.value,
                                          &gradients.attn_mask, &gradients.alibi_slopes, &gradients.position_bias,
                                          &gradients.sinks};
    for (int i = 0; i < kNumDifferentiable; ++i) {
      const NewArray array = wanted.gradient(arguments, i, views[i], i < 3 ? q.dtype : sums);
      arrays[i] = array.array;
      *targets[i] = array.view;
    }
  }

  AttentionGradients gradients;
  py::object arrays[kNumDifferentiable];

  py::tuple tuple() const {
    return py::make_tuple(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5], arrays[6]);
  }
};

py::object differentiate(py::handle query, py::handle key, py::handle value, py::handle result, py::handle lse,
                         py::handle dout, py::handle dlse, const py::dict& given_options, py::handle wrt,
                         py::handle num_threads) {
  const char* const function = "attention_gradient";
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query},
                                         {"key", key},
                                         {"value", value},
                                         {"out", result},
                                         {"lse", lse},
                                         {"dout", dout},
                                         {"dlse", dlse}});
  const ArrayArguments arrays(function, list);
  const TensorView k = arrays.tensor(1, 2, kMaxRank), q = with_batch_of(k, arrays.tensor(0, 2, kMaxRank));
  const TensorView v = arrays.tensor(2, 2, kMaxRank), out = arrays.tensor(3, 2, kMaxRank);
  const TensorView sums = arrays.scores(4, 1, kMaxRank - 1), d = arrays.tensor(5, 2, kMaxRank);
  const TensorView dsums = arrays.given(6) ? arrays.scores(6, 1, kMaxRank - 1) : TensorView();
  const ScoreOptions options(given, arrays, 7, num_threads, batch_size_of(q));
  const NewGradients results(WantedArguments(function, kDifferentiable, wrt), arrays, q, k, v, options);
  warn_if_forked();
  without_gil([&] { attention_gradient(q, k, v, out, sums, d, results.gradients, options, dsums); });
  return results.tuple();
}

py::object differentiate_varlen(py::handle query, py::handle key, py::handle value, py::handle cu_seqlens_q,
                                py::handle cu_seqlens_k, py::handle result, py::handle lse, py::handle dout,
                                py::handle dlse, const py::dict& given_options, py::handle wrt,
                                py::handle num_threads) {
  const char* const function = "attention_gradient_varlen";
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query},
                                         {"key", key},
                                         {"value", value},
                                         {"cu_seqlens_q", cu_seqlens_q},
                                         {"cu_seqlens_k", cu_seqlens_k},
                                         {"out", result},
                                         {"lse", lse},
                                         {"dout", dout},
                                         {"dlse", dlse}});
  const ArrayArguments arrays(function, list);
  const TensorView q = arrays.tensor(0, 3, 3), k = arrays.tensor(1, 3, 3), v = arrays.tensor(2, 3, 3);
  const RaggedArgument batch(arrays, 3, 4);
  const TensorView out = arrays.tensor(5, 3, 3), sums = arrays.scores(6, 2, 2), d = arrays.tensor(7, 3, 3);
  const TensorView dsums = arrays.given(8) ? arrays.scores(8, 2, 2) : TensorView();
  const ScoreOptions options(given, arrays, 9, num_threads, batch.size);
  const NewGradients results(WantedArguments(function, kDifferentiable, wrt), arrays, q, k, v, options);
  warn_if_forked();
  without_gil([&] { attention_gradient_varlen(q, k, v, batch, out, sums, d, results.gradients, options, dsums); });
  return results.tuple();
}

}  // namespace

void bind_attention(py::module_& m) {
  m.def("scaled_dot_product_attention", &attend,
        "(query, key, value, options, return_lse, out, num_threads) -> out or (out, lse)");
  m.def("scaled_dot_product_attention_varlen", &attend_varlen,
        "(query, key, value, cu_seqlens_q, cu_seqlens_k, options, return_lse, out, num_threads) -> out or (out, lse)");
  m.def("attention_weights", &weigh, "(query, key, options, stage, out, num_threads) -> weights");
  m.def(
      "attention_gradient", &differentiate,
      "(query, key, value, out, lse, dout, dlse, options, wrt, num_threads) -> a gradient or None, for each argument");
  m.def("attention_gradient_varlen", &differentiate_varlen,
        "(query, key, value, cu_seqlens_q, cu_seqlens_k, out, lse, dout, dlse, options, wrt, num_threads) -> likewise");
  m.def("attention_statistics", &observe,
        "(query, key, options, num_threads) -> (entropy, max_weight, max_key, mean_distance, received_weight)");
}

}  // namespace mha::bindings
