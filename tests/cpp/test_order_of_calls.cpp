// The order "sizes, memory, steps, phases" is kept by types: another order does not compile.
#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

#include "execute/transformer_layer_call.hpp"

namespace {

using namespace mha;

template <class Call>
using Phases = decltype(std::declval<Call&>().phases(std::declval<Phase*>()));
template <class Call>
using Run = decltype(std::declval<Call&>().run(int()));
template <class Call>
using Sizes = decltype(std::declval<Call&>().scratch_bytes());
template <class Call>
using Buffers = decltype(std::declval<Call&>().buffer(Index(), std::declval<Layout&>()));

template <template <class> class Use, class Call, class = void>
constexpr bool compiles = false;
template <template <class> class Use, class Call>
constexpr bool compiles<Use, Call, std::void_t<Use<Call>>> = true;

template <class Call>
constexpr bool runs = compiles<Phases, Call> || compiles<Run, Call>;

/// `Views` are what a call is bound to besides its memory.
template <class Sized, class Bound, class... Views>
constexpr bool are_in_order() {
  static_assert(compiles<Sizes, Sized> && !runs<Sized>, "without memory there is nothing to run");
  static_assert(!compiles<Sizes, Bound> && runs<Bound>, "with memory nothing is sized");
  static_assert(std::is_constructible_v<Bound, Sized&, const CallMemory&, Views...>);
  static_assert(!std::is_constructible_v<Bound, Sized&, Views...>, "memory is needed");
  static_assert(!std::is_copy_constructible_v<Bound> && !std::is_move_constructible_v<Bound>, "phases refer to it");
  return true;
}

/// Whether `Bound` can be made of sizes that nobody keeps.
template <class Sized, class Bound, class... Views>
constexpr bool takes_temporary = std::is_constructible_v<Bound, Sized, const CallMemory&, Views...>;

static_assert(are_in_order<SizedRowSteps, RowSteps>());
static_assert(compiles<Buffers, SizedRowSteps> && !compiles<Buffers, RowSteps>);
static_assert(are_in_order<SizedAttentionCall, AttentionCall, TensorView, TensorView, TensorView>());
static_assert(!takes_temporary<SizedAttentionCall, AttentionCall, TensorView, TensorView, TensorView>);
static_assert(
    are_in_order<SizedTransformerLayerCall, TransformerLayerCall, TensorView, TensorView, MutableTensorView>());
static_assert(
    !takes_temporary<SizedTransformerLayerCall, TransformerLayerCall, TensorView, TensorView, MutableTensorView>);
// Memory can only be had by saying how much scratch each worker needs.
static_assert(!std::is_default_constructible_v<CallMemory> && !std::is_constructible_v<CallMemory, Layout, int>);

TEST(CallMemory, ScratchOfWorkersComesBehindTheLayout) {
  Layout layout;
  const std::size_t part = layout.take(100);
  const CallMemory memory(layout, 3, 65);
  const Workers workers = memory.workers();
  EXPECT_EQ(part, 0u);
  EXPECT_EQ(workers.threads, 3);
  EXPECT_EQ(workers.scratch, memory.data() + 128);
  EXPECT_EQ(workers.scratch_stride, 128u);
}

}  // namespace
