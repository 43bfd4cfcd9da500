// What benchmarks divide by, with every instruction set that this machine runs.
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>

#include "mha/errors.hpp"
#include "mha/runtime.hpp"
#include "probes.hpp"

namespace mha::probes {
namespace {

class Probes : public ::testing::Test {
 protected:
  ~Probes() override { set_isa(nullptr); }

  /// Calls check() with every instruction set in turn, on a thread that has made no call yet: a probe is none either.
  template <class Check>
  static void with_each_isa(Check check) {
    for (int i = 0; i < num_built_isas(); ++i) {
      if (!isa_supported(i)) continue;
      SCOPED_TRACE(built_isa(i));
      set_isa(built_isa(i));
      std::thread([&] {
        check();
        EXPECT_STREQ(last_used_isa(), "");
      }).join();
    }
  }
};

TEST_F(Probes, ThePeakIsMeasuredWithoutCountingAsACall) {
  with_each_isa([] {
    EXPECT_GT(measure_fma_gflops(DType::f32, 0.01), 0);
    EXPECT_GT(measure_fma_gflops(DType::f64, -1), 0);
    EXPECT_GT(measure_fma_gflops(DType::f16, -1), 0);
    EXPECT_GT(measure_fma_gflops(DType::bf16, -1), 0);
  });
  EXPECT_THROW(measure_fma_gflops(DType::boolean, 0.01), DTypeError);
  EXPECT_THROW(measure_fma_gflops(DType::int8, 0.01), DTypeError);
}

TEST_F(Probes, ARoundCountsTheLanesOfAVector) {
  with_each_isa([] {
    EXPECT_GT(multiply_add(DType::f64, 3), 0);
    EXPECT_EQ(multiply_add(DType::f64, 6), 2 * multiply_add(DType::f64, 3));
    EXPECT_EQ(multiply_add(DType::f32, 3), 2 * multiply_add(DType::f64, 3));
    EXPECT_EQ(multiply_add(DType::f16, 3), multiply_add(DType::f32, 3));
  });
}

TEST_F(Probes, MemoryIsReadWithoutCountingAsACall) {
  const std::uint64_t words[3] = {1, 2, 4}, others[3] = {8, 16, 32};
  const void* const blocks[] = {words, others};
  with_each_isa([&] {
    EXPECT_EQ(read_memory(blocks, 2, 16, 1), 27u);
    EXPECT_EQ(read_memory(blocks, 2, 24, 2), 63u);
    EXPECT_EQ(read_memory(blocks, 2, 0, 2), 0u);
  });
}

}  // namespace
}  // namespace mha::probes
