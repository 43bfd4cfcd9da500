// merge_attention.
#include <mha/merge_attention.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

constexpr char kFunction[] = "merge_attention";

// The arrays of each shard, as views. The library compares them with one another; a message here is about one of them
// alone.
std::vector<TensorView> views_of(const char* name, const py::list& arrays) {
  std::vector<TensorView> views;
  for (const py::handle array : arrays) {
    const std::string shard = name + ("[" + std::to_string(views.size()) + "]");
    const Argument list[] = {{shard.c_str(), array}};
    views.push_back(ArrayArguments(kFunction, list).tensor(0, 0, kMaxRank));
  }
  return views;
}

py::object merge(const py::list& given_outs, const py::list& given_lses, py::handle given_out, py::handle num_threads) {
  const std::vector<TensorView> outs = views_of("outs", given_outs), lses = views_of("lses", given_lses);
  if (!outs.empty() && lses.size() != outs.size())
    throw py::value_error(std::string(kFunction) + ": lses must have as many shards as outs, " +
                          std::to_string(outs.size()) + "; got " + std::to_string(lses.size()));
  const ThreadsArgument threads(kFunction, num_threads);

  // Where outs[0] or lses[0] breaks a rule, the library says so of whatever is made from it.
  const TensorView first = outs.empty() ? TensorView{} : outs[0], scores = lses.empty() ? TensorView{} : lses[0];
  const Argument list[] = {{"out", given_out}};
  const NewArray out = given_out.is_none() ? new_array(first.dtype, first.rank, first.extents)
                                           : NewArray{py::reinterpret_borrow<py::object>(given_out),
                                                      ArrayArguments(kFunction, list).output(0, 0, kMaxRank)};
  const NewArray lse = new_array(scores.dtype, std::max(first.rank - 1, 0), first.extents);
  warn_if_forked();
  without_gil(
      [&] { merge_attention(outs.data(), lses.data(), static_cast<Index>(outs.size()), out.view, lse.view, threads); });
  return py::make_tuple(out.array, lse.array);
}

}  // namespace

void bind_merge(py::module_& m) { m.def("merge_attention", &merge, "(outs, lses, out, num_threads) -> (out, lse)"); }

}  // namespace mha::bindings
