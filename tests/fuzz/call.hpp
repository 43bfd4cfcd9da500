// One call of mha.h: its arguments in exact-size blocks, what may be changed about them, and what must hold after it.
#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory.hpp"

namespace mha::fuzz {

/// What a fuzzer looks for: a promise of the library that a call has broken.
class Finding : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How many calls there were, and how many of them the library took.
struct Tally {
  long calls = 0, accepted = 0;
};

enum class Role { input, output, output_or_minus_infinity };

/// A tensor of a call.
struct Argument {
  mha_tensor tensor;
  Role role;
  Block* block;
  bool is_null = false;

  const mha_tensor* get() const { return is_null ? nullptr : &tensor; }
  bool is_output() const { return role != Role::input; }
};

class Call {
 public:
  Call(std::string name, Choices& choices, Tally& tally)
      : name_(std::move(name)), choices_(choices), contents_(choices.contents()), tally_(tally) {}

  using Extents = std::vector<std::ptrdiff_t>;

  /// A tensor with strides that are dense, padded, permuted, or turned around.
  Argument& tensor(mha_dtype dtype, const Extents& extents, Role role = Role::input);
  /// The same, dense.
  Argument& dense(mha_dtype dtype, const Extents& extents, Role role = Role::input);
  /// null once in `times` times.
  Argument& maybe(Argument& argument, int times) {
    argument.is_null = choices_.once_in(times);
    return argument;
  }
  /// An output that is `input` itself: same memory, same strides.
  Argument& in_place_of(Argument& input);

  /// An array of integers, of exactly as many as there are. Which of them are wrong is for mutate() to choose.
  const std::int64_t* integers(const std::vector<std::int64_t>& values);
  std::int64_t* output_integers(std::ptrdiff_t count);
  /// Where null may be given in place of an array.
  const std::int64_t* const& pointer(const std::int64_t* array) { return pointers_.emplace_back(array); }

  // Numbers that mutate() may replace. They must live as long as the call.
  void number(std::int64_t& value) { numbers_.push_back(&value); }
  void small(int& value) { small_.push_back(&value); }
  void real(double& value) { reals_.push_back(&value); }
  /// A cache that the call reads or grows. It is put back before each repetition.
  void cache(mha_cache* cache);

  /// A call that is wrong from the beginning, and why.
  void expect_refusal(std::string why) { mutation_ = std::move(why); }
  /// Outputs may be given that the call has nothing to write to.
  void expect_unwritten() { expects_finite_ = false; }
  /// The call has an output of any shape, which nothing else limits: one that is not there is the fault of the caller.
  void take_any_shape() { takes_any_shape_ = true; }

  Choices& choices() { return choices_; }

  /// Breaks one thing about the arguments, half of the time.
  void mutate();
  /// Makes the call, with 0 for the threads that it asks for or with so many, and checks what it did.
  /// @throws Finding
  bool run(const std::function<mha_status(int threads)>& call);

 private:
  struct CacheState {
    mha_cache* cache;
    std::vector<std::int64_t> lengths;
    std::vector<std::vector<std::byte>> tensors;  // keys, values, and scales if it has any, as dense rows
  };

  Argument& add(const mha_tensor& tensor, Role role);
  void place(Argument& argument);
  void fill(Argument& argument);
  void mutate_tensor(Argument& argument);
  static CacheState state_of(mha_cache* cache);
  static void restore(const CacheState& state);
  static bool same(const CacheState& a, const CacheState& b);

  struct Result {
    mha_status status;
    std::vector<std::vector<std::byte>> blocks;
    std::vector<CacheState> caches;
  };
  Result once(const std::function<mha_status(int threads)>& call, int threads);
  void check_refused(const Result& result) const;
  void check_accepted(const Result& result) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string name_, mutation_;
  std::string error_;  // the last one of the call, not of what reads the caches after it
  Choices& choices_;
  std::mt19937 contents_;
  Tally& tally_;
  std::deque<Block> blocks_;
  std::deque<Argument> arguments_;
  std::deque<std::pair<std::int64_t*, std::ptrdiff_t>> arrays_;
  std::vector<Block*> outputs_of_integers_;
  std::deque<const std::int64_t*> pointers_;
  std::vector<std::int64_t*> numbers_;
  std::vector<int*> small_;
  std::vector<double*> reals_;
  std::vector<CacheState> caches_;
  bool expects_finite_ = true, takes_any_shape_ = false;
};

/// The sentence and the memory of one argument after another, for reports.
std::string describe(const mha_tensor& tensor);

}  // namespace mha::fuzz
