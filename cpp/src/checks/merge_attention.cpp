#include "checks/merge_attention.hpp"

#include <algorithm>
#include <string>

#include "checks/rules.hpp"
#include "views/describe.hpp"
#include "views/memory_overlap.hpp"

namespace mha {
namespace {

constexpr char kFunction[] = "merge_attention";

std::string shard_of(const char* list, Index s) { return list + ("[" + std::to_string(s) + "]"); }

/// One word for each view: "outs 3 x [2, 5]" if all words are the same, for there may be very many, otherwise "outs
/// ([2, 5], [2, 4])".
template <class Word>
std::string describe(const char* name, const TensorView* views, Index count, Word word) {
  const std::string first = word(views[0]);
  std::string all = first;
  bool is_same_word = true;
  for (Index s = 1; s < count; ++s) {
    const std::string next = word(views[s]);
    all += ", " + next;
    is_same_word = is_same_word && next == first;
  }
  return name + (is_same_word ? " " + std::to_string(count) + " x " + first : " (" + all + ")");
}

template <class Word>
std::string describe(const MergeArguments& a, Word word) {
  return describe("outs", a.outs, a.shards, word) + ", " + describe("lses", a.lses, a.shards, word) + ", ";
}

[[noreturn]] void refuse(const MergeArguments& a, const std::string& rule) {
  throw std::invalid_argument(kFunction + (": " + rule) + "; got " + describe(a, shape_of) +
                              shapes_of({{"out", a.out}, {"lse", a.lse}}));
}

/// Each tensor has memory, and the dtype of the others.
void check_tensors(const MergeArguments& a) {
  const DType dtype = a.outs[0].dtype;
  const auto check_at = [&](const std::string& name, const TensorView& view, DType expected, const char* rule) {
    check_tensor(kFunction, name.c_str(), view);
    if (view.dtype == expected) return;
    const auto word = [](const TensorView& each) { return std::string(name_of(each.dtype)); };
    throw DTypeError(kFunction + (": " + name) + rule + name_of(expected) + "; got " + describe(a, word) +
                     dtypes_of({{"out", a.out}, {"lse", a.lse}}));
  };
  check_dtypes(kFunction, dtype, {{"outs[0]", a.outs[0]}});  // outs[0] is of a floating-point type
  const DType scores = a.lses[0].dtype == DType::f64 ? DType::f64 : accumulator_of(dtype);
  constexpr char kOfOuts[] = " must be of the dtype of outs[0], ", kOfScores[] = " must be of the dtype of scores, ",
                 kOfLses[] = " must be of the dtype of lses[0], ";
  for (Index s = 0; s < a.shards; ++s) {
    check_at(shard_of("outs", s), a.outs[s], dtype, kOfOuts);
    check_at(shard_of("lses", s), a.lses[s], scores, s == 0 ? kOfScores : kOfLses);
  }
  check_at("out", a.out, dtype, kOfOuts);
  if (a.lse) check_at("lse", a.lse, scores, kOfLses);
}

bool has_shape_of(const TensorView& model, const TensorView& view) {
  return view.rank == model.rank && std::equal(view.extents, view.extents + view.rank, model.extents);
}

void check_shapes(const MergeArguments& a) {
  const TensorView& rows = a.outs[0];
  if (rows.rank < 2) refuse(a, "outs[0] must have two axes at least, [..., Tq, Dv]");
  check_rank(kFunction, "outs[0]", rows, 2, kMaxRank, {{"outs[0]", rows}});
  TensorView entries = rows;
  --entries.rank;
  const auto refuse_at = [&](const std::string& name, const TensorView& model) {
    const char* const rest = &model == &rows ? ", " : " without its last axis, ";
    refuse(a, name + " must have the shape of outs[0]" + rest + shape_of(model));
  };
  for (Index s = 0; s < a.shards; ++s) {
    if (!has_shape_of(rows, a.outs[s])) refuse_at(shard_of("outs", s), rows);
    if (!has_shape_of(entries, a.lses[s])) refuse_at(shard_of("lses", s), entries);
  }
  if (!has_shape_of(rows, a.out)) refuse_at("out", rows);
  if (a.lse && !has_shape_of(entries, a.lse)) refuse_at("lse", entries);
}

/// Whether two views of one shape and dtype are the same elements of memory in the same order.
bool is_same(const TensorView& a, const TensorView& b) {
  for (int axis = 0; axis < a.rank; ++axis)
    if (a.extents[axis] > 1 && a.strides[axis] != b.strides[axis]) return false;
  return a.data == b.data;
}

/// An output may be the view `own[0]` itself, and overlaps no other input.
void check_apart(const MergeArguments& a, const char* name, const MutableTensorView& output, const TensorView* own) {
  check_output(kFunction, name, output, {});
  const std::pair<const char*, const TensorView*> inputs[] = {{"outs", a.outs}, {"lses", a.lses}};
  for (const auto& [list, views] : inputs)
    for (Index s = 0; s < a.shards; ++s) {
      if (!may_overlap(output, views[s]) || (views + s == own && is_same(output, *own))) continue;
      const std::string shard = shard_of(list, s), exception = own == a.outs ? "outs[0]" : "lses[0]";
      fail(kFunction, name + (" must not overlap " + shard) + " in memory, unless it is " + exception + " itself",
           {{name, output}, {shard.c_str(), views[s]}});
    }
}

}  // namespace

void validate(const MergeArguments& a) {
  if (a.shards < 1)
    throw std::invalid_argument(std::string(kFunction) + ": outs must have at least one shard; got " +
                                std::to_string(a.shards));
  if (a.outs == nullptr || a.lses == nullptr)
    throw std::invalid_argument(std::string(kFunction) + ": outs and lses must be given, not be null pointers");
  check_tensors(a);
  check_shapes(a);
  check_apart(a, "out", a.out, a.outs);
  if (!a.lse) return;
  check_apart(a, "lse", a.lse, a.lses);
  check_output(kFunction, "lse", a.lse, {{"out", a.out}});
}

}  // namespace mha
