#include "call.hpp"

#include <climits>
#include <limits>

namespace mha::fuzz {
namespace {

/// Adds a mark to the bytes of a block that are elements of a tensor.
void mark_elements(const Argument& argument, std::vector<bool>& marks) {
  const std::ptrdiff_t begin = static_cast<std::byte*>(argument.tensor.data) - argument.block->data();
  for_each_element(argument.tensor, [&](std::ptrdiff_t offset) {
    for (std::ptrdiff_t i = 0; i < size_of(argument.tensor.dtype); ++i) marks[std::size_t(begin + offset + i)] = true;
  });
}

/// The threads of a caller who runs one worker after another, the last one first.
void run_backwards(void*, int count, void (*body)(void* context, int i), void* context) {
  while (count-- > 0) body(context, count);
}

}  // namespace

std::string describe(const mha_tensor& t) {
  std::string text = "dtype " + std::to_string(t.dtype) + " [";
  for (int axis = 0; axis < t.rank && axis < 4; ++axis)
    text += (axis ? ", " : "") + std::to_string(t.extents[axis]) + ":" + std::to_string(t.strides[axis]);
  return text + (t.data ? "]" : "] null");
}

void Call::fail(const std::string& what) const {
  std::string text = name_ + ": " + what + "; " + (mutation_.empty() ? "nothing was wrong" : mutation_);
  for (const Argument& a : arguments_)
    if (!a.is_null) text += "\n  " + std::string(a.is_output() ? "output " : "input ") + describe(a.tensor);
  throw Finding(text + "\n  last error: " + error_);
}

Argument& Call::add(const mha_tensor& tensor, Role role) {
  if (!reach_of(tensor)) throw std::logic_error(name_ + ": a valid tensor that is too large for a fuzzer");
  arguments_.push_back({tensor, role, nullptr});
  place(arguments_.back());
  return arguments_.back();
}

/// Gives a tensor a block that it fills to the last byte, with up to three elements before the first one.
void Call::place(Argument& a) {
  const std::optional<Reach> reach = reach_of(a.tensor);
  const std::ptrdiff_t before = reach ? choices_.below(4) * size_of(a.tensor.dtype) - reach->begin : 0;
  blocks_.emplace_back(std::size_t(reach ? before + reach->end : 8));  // what cannot be there must not be looked at
  a.block = &blocks_.back();
  a.tensor.data = a.block->data() + before;
  fill(a);
}

void Call::fill(Argument& a) {
  if (!reach_of(a.tensor)) return;
  std::vector<std::byte>& bytes = a.block->before();
  if (a.is_output()) {
    std::fill(bytes.begin(), bytes.end(), std::byte{0xff});  // NaN in every floating-point type
    return;
  }
  std::byte* const begin = bytes.data() + (static_cast<std::byte*>(a.tensor.data) - a.block->data());
  for_each_element(a.tensor,
                   [&](std::ptrdiff_t offset) { write_element(begin + offset, a.tensor.dtype, contents_()); });
}

Argument& Call::dense(mha_dtype dtype, const Extents& extents, Role role) {
  return add(mha_dense(nullptr, dtype, int(extents.size()), extents.data()), role);
}

Argument& Call::tensor(mha_dtype dtype, const Extents& extents, Role role) {
  mha_tensor t = mha_dense(nullptr, dtype, int(extents.size()), extents.data());
  const int kind = int(choices_.below(6));
  if (t.rank == 0 || kind < 3) return add(t, role);
  int order[4] = {0, 1, 2, 3};
  if (kind == 3) std::swap(order[choices_.below(t.rank)], order[choices_.below(t.rank)]);
  std::ptrdiff_t stride = kind == 4 ? choices_.between(1, 3) : 1;
  for (int i = t.rank; i-- > 0;) {
    t.strides[order[i]] = stride;
    stride *= t.extents[order[i]] + (kind == 4 ? choices_.below(2) : 0);
  }
  const auto axis = choices_.below(t.rank);
  if (kind == 5) t.strides[axis] = role == Role::input && choices_.once_in(2) ? 0 : -t.strides[axis];
  return add(t, role);
}

Argument& Call::in_place_of(Argument& input) {
  arguments_.push_back(input);
  arguments_.back().role = Role::output;
  return arguments_.back();
}

const std::int64_t* Call::integers(const std::vector<std::int64_t>& values) {
  blocks_.emplace_back(values.size() * sizeof(std::int64_t));
  if (!values.empty()) std::memcpy(blocks_.back().before().data(), values.data(), blocks_.back().size());
  auto* const first = reinterpret_cast<std::int64_t*>(blocks_.back().data());
  arrays_.emplace_back(first, std::ptrdiff_t(values.size()));
  return first;
}

std::int64_t* Call::output_integers(std::ptrdiff_t count) {
  blocks_.emplace_back(std::size_t(count) * sizeof(std::int64_t));
  outputs_of_integers_.push_back(&blocks_.back());
  return reinterpret_cast<std::int64_t*>(blocks_.back().data());
}

void Call::cache(mha_cache* cache) { caches_.push_back(state_of(cache)); }

void Call::mutate_tensor(Argument& a) {
  mha_tensor& t = a.tensor;
  const int axis = t.rank > 0 ? int(choices_.below(t.rank)) : 0;
  switch (choices_.below(8)) {
    case 0:
      mutation_ = "a null tensor";
      a.is_null = true;
      return;
    case 1:
      mutation_ = "null data";
      t.data = nullptr;
      return;
    case 2: {
      mutation_ = "another rank";
      const int rank = choices_.one_of({-1, 0, t.rank - 1, t.rank + 1, 5, INT_MAX, INT_MIN});
      if (rank == t.rank + 1 && rank <= 4) {
        t.extents[t.rank] = choices_.between(0, 2);
        t.strides[t.rank] = choices_.between(0, 1);
      }
      t.rank = rank;
      if (rank < 0 || rank > 4) return;  // which nobody looks behind
      break;
    }
    case 3:
      mutation_ = "another dtype";
      t.dtype = int(choices_.between(-1, 6));
      break;
    case 4:
      mutation_ = "an extent, off by one";
      t.extents[axis] += choices_.once_in(2) ? 1 : -1;
      break;
    case 5:
      mutation_ = "an extent of 0, or below";
      t.extents[axis] = choices_.one_of<std::ptrdiff_t>({0, -1, -7, PTRDIFF_MIN});
      break;
    case 6:
      mutation_ = "a huge extent";
      t.extents[axis] = choices_.one_of<std::ptrdiff_t>(
          {std::ptrdiff_t{1} << 31, std::ptrdiff_t{1} << 40, std::ptrdiff_t{1} << 62, PTRDIFF_MAX});
      if (!a.is_output()) t.strides[axis] = 0;
      if (a.is_output() && takes_any_shape_) t.extents[axis] = 0;
      break;
    default:
      mutation_ = "another stride";
      t.strides[axis] = choices_.one_of<std::ptrdiff_t>({0, 1, -1, -t.strides[axis], 2 * t.strides[axis]});
      if (t.extents[axis] <= 1) t.strides[axis] = choices_.one_of<std::ptrdiff_t>({PTRDIFF_MAX, PTRDIFF_MIN, 0});
  }
  place(a);
}

void Call::mutate() {
  if (!choices_.once_in(2)) return;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kLeast = -kMost - 1;
  const auto odd = [&] {
    return choices_.one_of<std::int64_t>({-2, -1, 0, 1, 7, std::int64_t{1} << 32, kMost, kLeast, kMost - 1});
  };
  switch (choices_.below(8)) {
    case 0:
      if (arrays_.empty()) return;
      if (const auto [array, count] = arrays_[std::size_t(choices_.below(std::ptrdiff_t(arrays_.size())))]; count > 0) {
        mutation_ = "another number in an array";
        for (Block& block : blocks_)
          if (block.data() == reinterpret_cast<std::byte*>(array)) {
            const std::int64_t value = odd();
            std::memcpy(block.before().data() + choices_.below(count) * 8, &value, sizeof value);
          }
      }
      return;
    case 1:
      if (numbers_.empty()) return;
      mutation_ = "another number";
      *numbers_[std::size_t(choices_.below(std::ptrdiff_t(numbers_.size())))] = odd();
      return;
    case 2: {
      if (small_.empty()) return;
      mutation_ = "another small number";
      int& value = *small_[std::size_t(choices_.below(std::ptrdiff_t(small_.size())))];
      value = choices_.one_of({-1, 0, 1, 4, 5, INT_MAX, INT_MIN});
      return;
    }
    case 3: {
      if (reals_.empty()) return;
      mutation_ = "another real number";
      expects_finite_ = false;
      constexpr double kInf = std::numeric_limits<double>::infinity();
      double& value = *reals_[std::size_t(choices_.below(std::ptrdiff_t(reals_.size())))];
      value =
          choices_.one_of({-kInf, kInf, std::numeric_limits<double>::quiet_NaN(), 0.0, -1.0, 1e300, -1e300, 1e-320});
      return;
    }
    case 4:
      if (pointers_.empty()) return;
      mutation_ = "an array that is null";
      pointers_[std::size_t(choices_.below(std::ptrdiff_t(pointers_.size())))] = nullptr;
      return;
    case 5: {
      if (arguments_.size() < 2) return;
      Argument& a = arguments_[std::size_t(choices_.below(std::ptrdiff_t(arguments_.size())))];
      const Argument& b = arguments_[std::size_t(choices_.below(std::ptrdiff_t(arguments_.size())))];
      const std::optional<Reach> reach = reach_of(a.tensor);
      if (&a == &b || !reach || std::size_t(reach->end - reach->begin) > b.block->size()) return;
      mutation_ = "memory of another tensor";
      const auto room = std::ptrdiff_t(b.block->size()) - (reach->end - reach->begin);
      const std::ptrdiff_t size = size_of(a.tensor.dtype);
      a.block = b.block;
      a.tensor.data = b.block->data() - reach->begin + choices_.below(room / size + 1) * size;
      expects_finite_ = false;
      return;
    }
    default:
      if (arguments_.empty()) return;
      mutate_tensor(arguments_[std::size_t(choices_.below(std::ptrdiff_t(arguments_.size())))]);
  }
}

namespace {

/// What copies the tokens of a cache into dense tensors of its sizes; of caches without scales the last two do nothing.
constexpr mha_status (*kCopies[])(const mha_cache*, const mha_tensor*) = {
    &mha_cache_copy_keys, &mha_cache_copy_values, &mha_cache_copy_key_scales, &mha_cache_copy_value_scales};

/// Keys, values and scales of `tokens` tokens, as the cache keeps them, over memory that is still to be given.
std::vector<mha_tensor> stored_tensors(mha_cache* cache, std::ptrdiff_t tokens) {
  std::vector<mha_tensor> tensors;
  for (const mha_tensor& all :
       {mha_cache_keys(cache), mha_cache_values(cache), mha_cache_key_scales(cache), mha_cache_value_scales(cache)}) {
    if (all.rank == 0) continue;
    const std::ptrdiff_t extents[] = {all.extents[0], all.extents[1], tokens, all.extents[3]};
    tensors.push_back(mha_dense(nullptr, all.dtype, 4, extents));
  }
  return tensors;
}

}  // namespace

Call::CacheState Call::state_of(mha_cache* cache) {
  const std::int64_t* const lengths = mha_cache_lengths(cache);
  CacheState state{cache, {lengths, lengths + mha_cache_config_of(cache).batch_size}, {}};
  for (mha_tensor& tokens : stored_tensors(cache, mha_cache_longest(cache, 0, nullptr))) {
    std::size_t bytes = std::size_t(size_of(tokens.dtype));
    for (int axis = 0; axis < 4; ++axis) bytes *= std::size_t(tokens.extents[axis]);
    std::vector<std::byte>& memory = state.tensors.emplace_back(bytes);
    tokens.data = memory.data();
    if (kCopies[state.tensors.size() - 1](cache, &tokens) != MHA_OK)
      throw Finding(std::string("a cache could not be read: ") + mha_last_error());
  }
  return state;
}

void Call::restore(const CacheState& state) {
  std::int64_t longest = 0;
  for (const std::int64_t length : state.lengths) longest = std::max(longest, length);
  std::vector<mha_tensor> tokens = stored_tensors(state.cache, std::ptrdiff_t(longest));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i].data = const_cast<std::byte*>(state.tensors[i].data());
  const std::int64_t* const lengths = state.lengths.data();
  const mha_status status =
      tokens.size() == 4 ? mha_cache_assign_stored(state.cache, &tokens[0], &tokens[1], &tokens[2], &tokens[3], lengths)
                         : mha_cache_assign(state.cache, &tokens[0], &tokens[1], lengths);
  if (status != MHA_OK) throw Finding(std::string("a cache could not be put back: ") + mha_last_error());
}

bool Call::same(const CacheState& a, const CacheState& b) { return a.lengths == b.lengths && a.tensors == b.tensors; }

Call::Result Call::once(const std::function<mha_status(int threads)>& call, int threads) {
  for (Block& block : blocks_) block.restore();
  for (const CacheState& state : caches_) restore(state);
  ++tally_.calls;
  Result result{call(threads), {}, {}};
  error_ = mha_last_error();
  for (const Block& block : blocks_) result.blocks.push_back(block.now());
  for (const CacheState& state : caches_) {
    result.caches.push_back(state_of(state.cache));
    if (!mha_paged_cache_check_pages(state.cache)) fail("a page is lost, or in use twice");
  }
  return result;
}

void Call::check_refused(const Result& result) const {
  if (result.status != MHA_INVALID_ARGUMENT && result.status != MHA_DTYPE_ERROR && result.status != MHA_OUT_OF_MEMORY)
    fail("status " + std::to_string(result.status));
  if (error_.empty()) fail("refused without a word");
  if (mutation_.empty()) fail("a valid call is refused");
  std::size_t i = 0;
  for (const Block& block : blocks_)
    if (const_cast<Block&>(block).before() != result.blocks[i++]) fail("a refused call has written");
  for (i = 0; i < caches_.size(); ++i)
    if (!same(caches_[i], result.caches[i])) fail("a refused call has changed a cache");
}

void Call::check_accepted(const Result& result) const {
  std::size_t i = 0;
  for (const Block& block : blocks_) {
    const std::vector<std::byte>& after = result.blocks[i++];
    std::vector<bool> written(block.size());
    for (const Argument& a : arguments_) {
      if (a.block != &block || a.is_null || !a.is_output()) continue;
      if (a.tensor.data == nullptr) {
        if (!is_empty(a.tensor)) fail("taken, with null data");
        continue;
      }
      if (!reach_of(a.tensor)) fail("taken, with more memory than there is");
      mark_elements(a, written);
      if (!expects_finite_) continue;
      for_each_element(a.tensor, [&](std::ptrdiff_t offset) {
        const std::byte* const element =
            after.data() + (static_cast<std::byte*>(a.tensor.data) - block.data()) + offset;
        const Kind kind = kind_of(element, a.tensor.dtype);
        if (kind == Kind::other || (kind == Kind::minus_infinity && a.role != Role::output_or_minus_infinity))
          fail("an element that is not finite, or was not written, " + std::to_string(offset) +
               " bytes from the first");
      });
    }
    for (const Block* integers : outputs_of_integers_)
      if (integers == &block) written.assign(written.size(), true);
    for (std::size_t byte = 0; byte < after.size(); ++byte)
      if (!written[byte] && after[byte] != const_cast<Block&>(block).before()[byte])
        fail("a byte of no output was written");
  }
}

bool Call::run(const std::function<mha_status(int threads)>& call) {
  const Result first = once(call, 0);
  if (first.status != MHA_OK) {
    check_refused(first);
    return false;
  }
  ++tally_.accepted;
  check_accepted(first);
  const auto repeat = [&](int threads, const std::string& how) {
    const Result again = once(call, threads);
    if (again.status != MHA_OK) fail("refused " + how);
    if (again.blocks != first.blocks) fail("other bits " + how);
    for (std::size_t i = 0; i < caches_.size(); ++i)
      if (!same(first.caches[i], again.caches[i])) fail("another cache " + how);
  };
  repeat(0, "a second time");
  repeat(1, "with 1 thread");
  repeat(2, "with 2 threads");
  const mha_executor executor{&run_backwards, nullptr, 3};
  mha_set_executor(&executor);
  repeat(3, "on an executor");
  mha_set_executor(nullptr);
  return true;
}

}  // namespace mha::fuzz
