// Which kernels a call uses, and that the linker kept the code of each instruction set apart.
#include "platform/dispatch.hpp"

#include <gtest/gtest.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mha/runtime.hpp"
#include "platform/fetch_evidence.hpp"

namespace mha {

// The linker gives calls of ask_for_lent_features() to the second one (CMakeLists.txt).
Processor really_ask_for_lent_features() asm("__real__ZN3mha21ask_for_lent_featuresEv");
Processor count_and_ask_for_lent_features() asm("__wrap__ZN3mha21ask_for_lent_featuresEv");
static std::atomic<int> times_asked{0};
Processor count_and_ask_for_lent_features() {
  ++times_asked;
  return really_ask_for_lent_features();
}

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

TEST_F(Dispatch, AScopeCountsForItsThread) {
  const std::string outside = active_isa();
  int first = -1, last = -1;
  for (int index = 0; index < num_built_isas(); ++index) {
    if (!isa_supported(index)) {
      EXPECT_THROW(IsaScope{index}, std::invalid_argument);
      continue;
    }
    last = index;
    if (first < 0) first = index;
  }
  EXPECT_THROW(IsaScope{-1}, std::invalid_argument);
  {
    const IsaScope outer(first);
    EXPECT_STREQ(active_isa(), built_isa(first));
    EXPECT_STREQ(active_kernels().isa, built_isa(first));
    EXPECT_NE(std::string(active_isa_reason()).find("IsaScope"), std::string::npos);
    {
      const IsaScope inner(last);
      EXPECT_STREQ(active_isa(), built_isa(last));
    }
    std::string elsewhere;
    std::thread([&] {
      set_isa(built_isa(last));
      elsewhere = active_isa();
    }).join();
    EXPECT_EQ(elsewhere, built_isa(last));
    EXPECT_STREQ(active_isa(), built_isa(first));
  }
  set_isa(nullptr);
  EXPECT_EQ(active_isa(), outside);
}

TEST_F(Dispatch, TheDefaultIsTheLastThatIsSupportedAndPreferred) {
  const auto all = [](int) { return true; };
  const auto no_last = [](int index) { return index < 3; };
  EXPECT_EQ(default_isa_index(4, all, all), 3);
  EXPECT_EQ(default_isa_index(4, no_last, all), 2);
  EXPECT_EQ(default_isa_index(4, all, no_last), 2);  // as a processor of Intel with AVX512_BF16
  EXPECT_EQ(default_isa_index(4, [](int index) { return index != 2; }, no_last), 1);
  EXPECT_EQ(default_isa_index(4, [](int index) { return index == 3; }, no_last), -1);
  std::vector<int> asked;
  const auto supported = [&](int index) { return asked.push_back(index), index == 1; };
  EXPECT_EQ(default_isa_index(4, supported, no_last), 1);
  EXPECT_EQ(asked, (std::vector<int>{2, 1})) << "what is not preferred is not asked about";
}

// Of the features of the registry, what each step adds; a build for part of the instruction sets may not ask for all.
std::uint64_t features_named(const std::vector<std::string>& names) {
  std::uint64_t found = 0;
  for ([[maybe_unused]] const std::string& name : names) {
#define MHA_FEATURE(identifier, feature) \
  if (name == feature) found |= features::identifier;
#include "feature_list.inc"
#undef MHA_FEATURE
  }
  return found;
}

struct Machine {
  const char* name;
  Processor processor;
  const char* best;  // "none" if it runs none
};

#if defined(__x86_64__)
#if !defined(__clang__)  // which does not know every name
TEST(Processor, HasTheFeaturesThatTheLibraryOfTheCompilerFinds) {
  const std::uint64_t known = this_processor().features | this_processor().refused;
#define MHA_FEATURE(identifier, feature) \
  EXPECT_EQ((known & features::identifier) != 0, __builtin_cpu_supports(feature) != 0) << (feature);
#include "feature_list.inc"
#undef MHA_FEATURE
}
#endif

const std::uint64_t kV2 = features_named({"sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"});
const std::uint64_t kV3 = kV2 | features_named({"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"});
const std::uint64_t kV4 = kV3 | features_named({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"});
const std::uint64_t kVnni = features_named({"avx512vnni"}), kBf16 = features_named({"avx512bf16"});
const std::uint64_t kAvxVnni = features_named({"avxvnni"});
const std::uint64_t kAmx = features_named({"amx-tile", "amx-bf16", "amx-int8"});
constexpr char kAmd[] = "AuthenticAMD", kIntel[] = "GenuineIntel";

// Vendors, families and models as CPUID has them.
const Machine kMachines[] = {
    {"AMD K8, of x86-64-v1", {kAmd, 0x0f, 0x23, 0}, "none"},
    {"Intel Nehalem", {kIntel, 6, 0x1a, kV2}, "baseline"},
    {"Intel Sandy Bridge", {kIntel, 6, 0x2a, kV2 | features_named({"avx"})}, "baseline"},
    {"Intel Haswell", {kIntel, 6, 0x3c, kV3}, "avx2"},
    {"Intel Skylake server", {kIntel, 6, 0x55, kV4}, "avx512"},
    {"Intel Cascade Lake", {kIntel, 6, 0x55, kV4 | kVnni}, "avx512vnni"},
    {"Intel Cooper Lake", {kIntel, 6, 0x55, kV4 | kVnni | kBf16}, "avx512vnni"},
    {"Intel Ice Lake server", {kIntel, 6, 0x6a, kV4 | kVnni}, "avx512vnni"},
    {"Intel Tiger Lake", {kIntel, 6, 0x8c, kV4 | kVnni}, "avx512vnni"},
    {"Intel Alder Lake, hybrid", {kIntel, 6, 0x97, kV3 | kAvxVnni}, "avxvnni"},
    {"Intel Sapphire Rapids", {kIntel, 6, 0x8f, kV4 | kVnni | kBf16 | kAvxVnni}, "avx512vnni"},
    {"Intel Sapphire Rapids whose system lends tiles", {kIntel, 6, 0x8f, kV4 | kVnni | kBf16 | kAvxVnni | kAmx}, "amx"},
    {"Intel Granite Rapids", {kIntel, 6, 0xad, kV4 | kVnni | kBf16 | kAvxVnni}, "avx512vnni"},
    {"Intel Granite Rapids whose system lends tiles", {kIntel, 6, 0xad, kV4 | kVnni | kBf16 | kAvxVnni | kAmx}, "amx"},
    {"with tiles, of another maker", {"GenuineOther", 6, 1, kV4 | kVnni | kBf16 | kAmx}, "avx512vnni"},
    {"Intel Sierra Forest, of 256 bits", {kIntel, 6, 0xaf, kV3 | kAvxVnni}, "avxvnni"},
    {"Intel, a family to come", {kIntel, 19, 1, kV4 | kVnni | kBf16 | kAvxVnni}, "avx512vnni"},
    {"AMD Zen", {kAmd, 0x17, 0x01, kV3}, "avx2"},
    {"AMD Zen 3", {kAmd, 0x19, 0x01, kV3}, "avx2"},
    {"AMD Zen 4", {kAmd, 0x19, 0x11, kV4 | kVnni | kBf16}, "avx512bf16"},
    {"AMD Zen 5", {kAmd, 0x1a, 0x02, kV4 | kVnni | kBf16 | kAvxVnni}, "avx512bf16"},
    {"AMD Zen 5 whose hypervisor hides BF16", {kAmd, 0x1a, 0x02, kV4 | kVnni | kAvxVnni}, "avx512vnni"},
    {"AMD Zen 5 whose system saves no AVX-512", {kAmd, 0x1a, 0x02, kV3 | kAvxVnni}, "avxvnni"},
    {"AMD, a family to come", {kAmd, 0x1c, 1, kV4 | kVnni | kBf16 | kAvxVnni}, "avx512bf16"},
    {"Hygon Dhyana", {"HygonGenuine", 0x18, 0x00, kV3}, "avx2"},
    {"of another maker", {"CentaurHauls", 7, 0x3b, kV4 | kVnni | kBf16}, "avx512vnni"},
};

#elif defined(__aarch64__) && defined(__linux__)
/// A field of four bits of a register that says what instructions there are: Arm, "Architecture Reference Manual for
/// A-profile architecture". Linux answers for the processor, and leaves out what it does not know.
#define MHA_FIELD(id_register, first_bit)                      \
  ([] {                                                        \
    std::uint64_t value;                                       \
    asm volatile("mrs %0, " #id_register : "=r"(value));       \
    return static_cast<unsigned>(value >> (first_bit)) & 0xfU; \
  }())

TEST(Processor, HasTheFeaturesOfItsIdentificationRegisters) {
  constexpr unsigned long kHwcap = 16, kMayReadRegisters = 1UL << 11;
  if ((getauxval(kHwcap) & kMayReadRegisters) == 0) GTEST_SKIP() << "this kernel does not lend these registers";
  const struct {
    const char* name;
    bool is_here;
  } expected[] = {{"crc", MHA_FIELD(ID_AA64ISAR0_EL1, 16) != 0},
                  {"lse", MHA_FIELD(ID_AA64ISAR0_EL1, 20) != 0},
                  {"rdma", MHA_FIELD(ID_AA64ISAR0_EL1, 28) != 0},
                  {"dotprod", MHA_FIELD(ID_AA64ISAR0_EL1, 44) != 0},
                  {"bf16", MHA_FIELD(S3_0_C0_C6_1, 44) != 0}};
  for (const auto& [name, is_here] : expected) {
    const std::uint64_t feature = features_named({name});
    if (feature != 0) {
      EXPECT_EQ((this_processor().features & feature) != 0, is_here) << name;
    }
  }
}
#undef MHA_FIELD

const std::uint64_t kV81 = features_named({"crc", "lse", "rdma"}), kDot = features_named({"dotprod"});
const std::uint64_t kBf16 = features_named({"bf16"});

const Machine kMachines[] = {
    {"Cortex-A72, of Armv8.0", {"", 0, 0, features_named({"crc"})}, "neon"},
    {"of Armv8.1", {"", 0, 0, kV81}, "neon"},
    {"Neoverse N1", {"", 0, 0, kV81 | kDot}, "neondot"},
    {"Neoverse V1", {"", 0, 0, kV81 | kDot | kBf16}, "neondot"},
    {"whose system hides dot products", {"", 0, 0, kV81 | kBf16}, "neon"},
};
#endif

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))
bool is_built(const std::string& name) {
  for (int index = 0; index < num_built_isas(); ++index)
    if (built_isa(index) == name) return true;
  return false;
}

TEST_F(Dispatch, EachProcessorGetsItsBest) {
  if (is_built("native")) GTEST_SKIP() << "this build is for one machine";
  for (const auto& [name, processor, best] : kMachines) {
    const int index = default_isa_on(processor);
    if (std::string(best) == "none" || is_built(best)) {
      EXPECT_STREQ(index < 0 ? "none" : built_isa(index), best) << name;
    }
  }
}

TEST_F(Dispatch, FewRowsFetchAheadWhereThatWasMeasured) {
  for (const auto& [name, processor, best] : kMachines)
    EXPECT_EQ(fetches_few_rows_ahead_on(processor), std::string(name).rfind("AMD Zen 5", 0) == 0) << name;
}

/// The reason of the instruction set on the processor, or `otherwise` if it is not built in.
std::string reason_on(const Processor& processor, const std::string& name, const char* otherwise) {
  for (int index = 0; index < num_built_isas(); ++index)
    if (built_isa(index) == name) return isa_reason_on(index, processor);
  return otherwise;
}

#if defined(__x86_64__)
TEST_F(Dispatch, TheReasonSaysWhyAnInstructionSetIsOrIsNotTheDefault) {
  const struct {
    Processor processor;
    const char *isa, *reason;
  } expected[] = {
      {{kIntel, 6, 0x8f, kV4}, "baseline", "runs here"},
      {{kIntel, 6, 0x8f, kV4 | kVnni}, "avx512vnni", "runs here; measured on Sapphire Rapids: "},
      {{kIntel, 6, 0x8f, kV4 | kVnni | kBf16},
       "avx512bf16",
       "runs here, but not by default; measured on Sapphire Rapids: "},
      {{kIntel, 6, 0xad, kV4 | kVnni | kBf16}, "avx512bf16", "runs here, but not by default; assumed: "},
      {{kAmd, 0x1a, 0x02, kV4 | kVnni | kBf16}, "avx512bf16", "runs here; measured on Zen 5: "},
      {{kAmd, 0x19, 0x01, kV3}, "avx512bf16", "does not run here, without avx512f, avx512bw, avx512cd and 4 more"},
      {{kAmd, 0x19, 0x01, kV3}, "avxvnni", "does not run here, without avxvnni"},
      {{kIntel, 6, 0x8f, kV4 | kVnni | kBf16}, "amx", "does not run here, without amx-tile, amx-bf16, amx-int8"},
      {{kIntel, 6, 0x8f, kV4 | kVnni | kBf16, kAmx, "nobody lends tiles"},
       "amx",
       "does not run here: nobody lends tiles"},
      {{kIntel, 6, 0x8f, kV4 | kVnni, kAmx, "nobody lends tiles"},
       "amx",
       "does not run here, without avx512bf16, amx-tile"},
      {{kIntel, 6, 0x8f, kV4 | kVnni | kBf16 | kAmx}, "amx", "runs here; assumed: "},
      {{kIntel, 6, 0xad, kV4 | kVnni | kBf16 | kAmx}, "amx", "runs here; assumed: "},
      {{"GenuineOther", 6, 1, kV4 | kVnni | kBf16 | kAmx}, "amx", "runs here, but not by default; assumed: "},
      {{kAmd, 0x19, 0x11, kV4 | kVnni | kBf16}, "amx_model", "runs here, but not by default; a model of amx"},
  };
  for (const auto& [processor, isa, reason] : expected)
    EXPECT_EQ(reason_on(processor, isa, reason).rfind(reason, 0), 0U) << reason_on(processor, isa, reason);
}

/// Of these names those that are built in.
std::vector<std::string> built_of(const std::vector<std::string>& names) {
  std::vector<std::string> built;
  for (const std::string& name : names)
    if (is_built(name)) built.push_back(name);
  return built;
}

/// What without_refused() asks about on the processor where it refuses `name`, or nothing, and what it returns.
struct Refusal {
  std::vector<std::string> asked;
  Processor trusted;

  Refusal(const Processor& processor, const std::string& name) {
    trusted = without_refused(processor, [&](int index) {
      asked.emplace_back(built_isa(index));
      return name == built_isa(index);
    });
  }
};

TEST_F(Dispatch, WhatComputesOtherwiseThanExpectedIsRefused) {
  const Processor server{kIntel, 6, 0x8f, kV4 | kVnni | kBf16 | kAmx}, zen4{kAmd, 0x19, 0x11, kV4 | kVnni | kBf16};
  const Refusal nothing(server, "");
  EXPECT_EQ(nothing.trusted.features, server.features);
  EXPECT_EQ(nothing.trusted.refused, 0U);
  EXPECT_EQ(nothing.asked, built_of({"baseline", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"}))
      << "each that runs and needs what no earlier one needs";
  EXPECT_EQ(Refusal({kAmd, 0x19, 0x01, kV3}, "").asked, built_of({"baseline", "avx2"}))
      << "code that the processor lacks instructions for must not be asked";

  if (!is_built("amx")) GTEST_SKIP() << "amx is not built in";
  const std::string other_bits = "have other bits than the kernels count on";
  const Processor without_tiles = Refusal(server, "amx").trusted;
  EXPECT_EQ(without_tiles.features, server.features & ~kAmx);
  EXPECT_EQ(without_tiles.refused, kAmx);
  EXPECT_EQ(reason_on(without_tiles, "amx", ""), "does not run here: its products by 'amx' " + other_bits);
  EXPECT_EQ(reason_on(without_tiles, "avx512bf16", "").rfind("runs here", 0), 0U);

  // What is refused takes what extends it along, and the default is found without it.
  const Refusal without_bf16(server, "avx512bf16");
  EXPECT_EQ(without_bf16.asked, built_of({"baseline", "avx2", "avx512", "avx512vnni", "avx512bf16"}));
  EXPECT_EQ(reason_on(without_bf16.trusted, "amx", ""),
            "does not run here: its products by 'avx512bf16' " + other_bits);
  if (is_built("native")) return;  // the default of each processor
  EXPECT_STREQ(built_isa(default_isa_on(zen4)), "avx512bf16");
  EXPECT_STREQ(built_isa(default_isa_on(Refusal(zen4, "avx512bf16").trusted)), "avx512vnni");
}

TEST_F(Dispatch, ThisProcessorIsKnown) {
  EXPECT_EQ(this_processor().vendor.size(), 12U);
  EXPECT_GT(this_processor().family, 0);
  EXPECT_EQ(this_processor().vendor == kAmd, bool(__builtin_cpu_is("amd")));
  EXPECT_EQ(this_processor().vendor == kIntel, bool(__builtin_cpu_is("intel")));
  for (int index = 0; index < num_built_isas(); ++index)
    EXPECT_EQ(isa_reason(index), isa_reason_on(index, trusted_processor()));
}
#else
TEST_F(Dispatch, TheReasonSaysWhyAnInstructionSetIsOrIsNotTheDefault) {
  const struct {
    Processor processor;
    const char *isa, *reason;
  } expected[] = {
      {{"", 0, 0, 0}, "neon", "runs here"},
      {{"", 0, 0, kV81}, "neondot", "does not run here, without dotprod"},
      {{"", 0, 0, kV81 | kDot}, "neondot", "runs here; assumed: "},
      {{"", 0, 0, kV81 | kDot}, "neonbf16", "does not run here, without bf16"},
      {{"", 0, 0, kV81 | kDot | kBf16}, "neonbf16", "runs here, but not by default; assumed: "},
  };
  for (const auto& [processor, isa, reason] : expected)
    EXPECT_EQ(reason_on(processor, isa, reason).rfind(reason, 0), 0U) << reason_on(processor, isa, reason);
}
#endif
#endif

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

// ctest runs each test in a process of its own.
TEST_F(Dispatch, ALoanIsTakenWhereItIsNeededAlone) {
  if (times_asked > 0) GTEST_SKIP() << "an earlier test of this process has taken it";
  const auto needs_loan = [](int index) { return std::string(built_isa(index)) == "amx"; };
  const char* const requested = std::getenv("MHA_NATIVE_ISA");
  if (requested != nullptr && *requested != '\0') GTEST_SKIP() << "MHA_NATIVE_ISA may ask for it";
  for (int index = 0; index < num_built_isas(); ++index)
    if (needs_loan(index) && isa_preferred(index)) GTEST_SKIP() << "it is the default of this processor";
  active_kernels();
  for (int index = 0; index < num_built_isas(); ++index)
    if (!needs_loan(index) && isa_supported(index)) set_isa(built_isa(index));
  EXPECT_EQ(times_asked, 0);
  for (int index = 0; index < num_built_isas(); ++index)
    if (needs_loan(index)) {
      isa_supported(index);
      EXPECT_EQ(times_asked, 1);
    }
  isa_reason(0);
  EXPECT_LE(times_asked, 1) << "once in a process";
}

TEST_F(Dispatch, LastUsedBelongsToTheThread) {
  active_kernels();
  EXPECT_STRNE(last_used_isa(), "");
  std::thread([] { EXPECT_STREQ(last_used_isa(), ""); }).join();
}

/// The kernels of an instruction set; null if this machine does not run it.
const KernelTable* kernels_of(const std::string& name) {
  for (int index = 0; index < num_built_isas(); ++index)
    if (name == built_isa(index) && isa_supported(index)) {
      set_isa(built_isa(index));
      return &active_kernels();
    }
  return nullptr;
}

/// Expects `extension` to have bf16 or int8 kernels of its own, and those of `base` for everything else.
void expect_extension(const char* extension_name, const char* base_name, bool has_bf16, bool has_int8) {
  SCOPED_TRACE(extension_name);
  const KernelTable *const extension = kernels_of(extension_name), *const base = kernels_of(base_name);
  ASSERT_NE(base, nullptr);
  EXPECT_STREQ(extension->compiled_isa(), extension_name);
  for (int i = 0; i < kNumDTypes; ++i) {
    SCOPED_TRACE(i);
    const DTypeKernels &own = extension->kernels[i], &others = base->kernels[i];
    const bool is_own = has_bf16 && i == static_cast<int>(DType::bf16);
    EXPECT_EQ(own.attend.run != others.attend.run, is_own);
    EXPECT_EQ(own.decode.run != others.decode.run, is_own);
    EXPECT_EQ(own.weights != others.weights, is_own);
    EXPECT_EQ(own.project[0].run != others.project[0].run, is_own);
  }
  constexpr auto kNumbers = static_cast<int>(DType::f32), kInt8 = static_cast<int>(WeightFormat::int8),
                 kInt4 = static_cast<int>(WeightFormat::int4), kBf16Weights = static_cast<int>(WeightFormat::bf16);
  const auto &own = extension->kernels[kNumbers].project, &others = base->kernels[kNumbers].project;
  EXPECT_EQ(own[kInt8].run != others[kInt8].run, has_int8);
  EXPECT_EQ(own[kInt8].read != others[kInt8].read, has_int8);  // rows have another form
  EXPECT_EQ(own[kInt4].run != others[kInt4].run, has_int8);
  EXPECT_EQ(own[kInt4].read != others[kInt4].read, has_int8);
  EXPECT_EQ(own[kBf16Weights].run, others[kBf16Weights].run);
}

TEST_F(Dispatch, AnExtensionHasTheKernelsOfItsBaseForOtherTypes) {
  const struct {
    const char *name, *base;
    bool has_bf16, has_int8;
  } extensions[] = {{"avxvnni", "avx2", false, true},          {"avx512vnni", "avx512", false, true},
                    {"avx512bf16", "avx512vnni", true, false}, {"amx", "avx512bf16", true, true},
                    {"amx_model", MHA_AMX_MODEL, true, true},  {"neondot", "neon", false, true},
                    {"neonbf16", "neondot", true, false}};
  int tested = 0;
  for (const auto& [name, base, has_bf16, has_int8] : extensions)
    if (kernels_of(name) != nullptr) expect_extension(name, base, has_bf16, has_int8), ++tested;
  if (tested == 0) GTEST_SKIP() << "this machine runs no instruction set that extends another";
}

}  // namespace
}  // namespace mha
