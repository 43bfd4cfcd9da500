// Which kernels a call uses, and that the linker kept the code of each instruction set apart.
#include "platform/dispatch.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "mha/runtime.hpp"

namespace mha {
namespace {

class Dispatch : public ::testing::Test {
 protected:
  void TearDown() override { set_isa(nullptr); }
};

std::string message_of_set_isa(const char* name) {
  try {
    set_isa(name);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Dispatch, EveryTableRunsItsOwnCode) {
  int supported = 0;
  for (int index = 0; index < num_built_isas(); ++index) {
    if (!isa_supported(index)) continue;
    ++supported;
    set_isa(built_isa(index));
    EXPECT_STREQ(active_isa(), built_isa(index));
    EXPECT_STREQ(active_kernels().isa, built_isa(index));
    EXPECT_STREQ(active_kernels().compiled_isa(), built_isa(index));
    EXPECT_STREQ(last_used_isa(), built_isa(index));
  }
  EXPECT_GT(supported, 0);
}

TEST_F(Dispatch, TheNamesOfTheRegistryAreDistinct) {
  for (int i = 0; i < num_built_isas(); ++i)
    for (int j = 0; j < i; ++j) EXPECT_STRNE(built_isa(i), built_isa(j));
  EXPECT_THROW(built_isa(-1), std::invalid_argument);
  EXPECT_THROW(isa_supported(num_built_isas()), std::invalid_argument);
}

TEST_F(Dispatch, AnImpossibleChoiceIsAnErrorAndChangesNothing) {
  const std::string before = active_isa();
  const std::string message = message_of_set_isa("avx1024");
  EXPECT_NE(message.find("unknown instruction set 'avx1024'; available: "), std::string::npos) << message;
  EXPECT_NE(message.find(before), std::string::npos) << message;
  for (int index = 0; index < num_built_isas(); ++index) {
    if (isa_supported(index)) continue;
    EXPECT_NE(message_of_set_isa(built_isa(index)).find("this machine does not run"), std::string::npos);
  }
  EXPECT_EQ(active_isa(), before);
}

TEST_F(Dispatch, TheReasonFollowsTheChoice) {
  const std::string by_default = active_isa_reason();
  const std::string isa = active_isa();
  set_isa(isa.c_str());
  EXPECT_NE(std::string(active_isa_reason()).find("set_isa()"), std::string::npos);
  set_isa("");
  EXPECT_EQ(active_isa_reason(), by_default);
  EXPECT_EQ(active_isa(), isa);
}

TEST_F(Dispatch, TheDefaultIsTheLastThatIsSupportedAndPreferred) {
  const auto all = [](int) { return true; };
  const auto no_last = [](int index) { return index < 3; };
  EXPECT_EQ(default_isa_index(4, all, all), 3);
  EXPECT_EQ(default_isa_index(4, no_last, all), 2);
  EXPECT_EQ(default_isa_index(4, all, no_last), 2);  // as a processor of Intel with AVX512_BF16
  EXPECT_EQ(default_isa_index(4, [](int index) { return index != 2; }, no_last), 1);
  EXPECT_EQ(default_isa_index(4, [](int index) { return index == 3; }, no_last), -1);
}

// tests/cpp/CMakeLists.txt runs this one again for environments that ask for something.
TEST_F(Dispatch, TheEnvironmentChooses) {
  const char* requested = std::getenv("MHA_NATIVE_ISA");
  if (requested == nullptr || *requested == '\0') {
    EXPECT_NE(std::string(active_isa_reason()).find("the best"), std::string::npos);
    EXPECT_STREQ(active_isa(), built_isa(default_isa_index(num_built_isas(), &isa_supported, &isa_preferred)));
  } else {
    EXPECT_STREQ(active_isa(), requested);
  }
}

TEST_F(Dispatch, LastUsedBelongsToTheThread) {
  active_kernels();
  EXPECT_STRNE(last_used_isa(), "");
  std::thread([] { EXPECT_STREQ(last_used_isa(), ""); }).join();
}

TEST_F(Dispatch, AnExtensionHasTheKernelsOfItsBaseForOtherTypes) {
  constexpr char kExtension[] = "avx512bf16";
  bool is_there = false;
  for (int index = 0; index < num_built_isas(); ++index)
    is_there = is_there || (isa_supported(index) && std::string(built_isa(index)) == kExtension);
  if (!is_there) GTEST_SKIP() << "this machine does not run " << kExtension;
  set_isa("avx512");
  const KernelTable base = active_kernels();
  set_isa(kExtension);
  const KernelTable& extension = active_kernels();
  set_isa(nullptr);
  EXPECT_STREQ(extension.compiled_isa(), kExtension);
  for (DType dtype : {DType::f32, DType::f64, DType::f16}) {
    const auto i = static_cast<int>(dtype);
    EXPECT_EQ(extension.kernels[i].attend.run, base.kernels[i].attend.run);
    EXPECT_EQ(extension.kernels[i].decode.run, base.kernels[i].decode.run);
    EXPECT_EQ(extension.kernels[i].project[0].run, base.kernels[i].project[0].run);
  }
  constexpr auto kPairs = static_cast<int>(DType::bf16);
  EXPECT_NE(extension.kernels[kPairs].attend.run, base.kernels[kPairs].attend.run);
  EXPECT_NE(extension.kernels[kPairs].project[0].run, base.kernels[kPairs].project[0].run);
}

}  // namespace
}  // namespace mha
