// Compiled with the flags of one instruction set, whose name is MHA_PROBED_ISA. Vectors are the types of GCC and Clang,
// as wide as the registers; products and sums are fused where the instruction set can (CMakeLists.txt asks for that).
#include "loops.hpp"

namespace mha::probes {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

/// Independent sums in one loop. VDPBF16PS of Zen 5 has two pipes and a latency of six, so it needs twelve. With exactly
/// twelve every delay is lost: the result was 400 to 520 GFLOP/s in bf16, and 540 to 550 from 16 sums on. Factors take
/// the other registers.
constexpr int kSums = kRegisters == 32 ? 24 : 12;

// Wherever sums are named the loop must disappear: an index that varies would keep them in memory.
#define MHA_UNROLL _Pragma("GCC unroll 32")

template <class T>
using Vector __attribute__((vector_size(kVectorBytes))) = T;

/// sum * shrink + grow, so that numbers stay near 1: neither subnormal nor infinite.
struct Numbers {
  static constexpr int kProducts = 1;
  template <class V>
  static void advance(V& sum, const V& shrink, const V& grow) {
    sum = sum * shrink + grow;
  }
};

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
/// Pairs of bf16: two products, here small ones, are added to each f32.
struct Pairs {
  static constexpr int kProducts = 2;
  static void advance(Vector<float>& sum, const Vector<float>&, const Vector<float>& grow) {
#ifdef __AVX512BF16__
    asm("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(grow));
#else
    asm("bfdot %0.4s, %1.8h, %1.8h" : "+w"(sum) : "w"(grow));
#endif
  }
};
#else
using Pairs = Numbers;
#endif

template <class T, class Kind>
double multiply_add(Index rounds) {
  constexpr int kLanes = kVectorBytes / int(sizeof(T)), kRepeats = 4;
  const Vector<T> zero = {}, shrink = zero + T(0.999), grow = zero + T(0.001);
  Vector<T> sums[kSums];
  MHA_UNROLL
  for (int i = 0; i < kSums; ++i) sums[i] = zero + T(2 + i);  // from 1 they would not move, and not be computed
  for (Index round = 0; round < rounds; ++round) {
    MHA_UNROLL
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      MHA_UNROLL
      for (int i = 0; i < kSums; ++i) Kind::advance(sums[i], shrink, grow);
    }
  }
  Vector<T> total = zero;  // not the first of the sums: they stay in registers only if nobody has their address
  MHA_UNROLL
  for (int i = 0; i < kSums; ++i) total += sums[i];
  asm volatile("" : : "r"(&total) : "memory");  // wanted by somebody
  return 2.0 * double(rounds) * kRepeats * kSums * kLanes * Kind::kProducts;
}

/// One load and one operation for each vector, so that a loop that also computes has nothing to wait for that this one
/// has not. XOR, since no order changes it: it proves that all was read. Two to eight streams side by side, and
/// prefetching 1 to 4 KiB ahead, read no faster on a Zen 5 core, hot or cold.
std::uint64_t read_words(const void* memory, Index count) {
  using Words = Vector<std::uint64_t>;
  constexpr int kSide = 8;  // vectors side by side: eight cache lines of 64 bytes each
  constexpr Index kLanes = kVectorBytes / 8, kStep = kSide * kLanes;
  const auto* words = static_cast<const unsigned char*>(memory);
  Words sums[kSide] = {};
  Index word = 0;
  for (; word + kStep <= count; word += kStep) {
    MHA_UNROLL
    for (int i = 0; i < kSide; ++i) {
      Words read;
      __builtin_memcpy(&read, words + (word + i * kLanes) * 8, sizeof read);
      sums[i] ^= read;
    }
  }
  std::uint64_t result = 0;
  for (const Words& sum : sums)
    for (Index lane = 0; lane < kLanes; ++lane) result ^= sum[lane];
  for (; word < count; ++word) {
    std::uint64_t read;
    __builtin_memcpy(&read, words + word * 8, sizeof read);
    result ^= read;
  }
  return result;
}

template <DType dtype>
constexpr auto kMultiplyAdd = &multiply_add<float, Numbers>;
template <>
constexpr auto kMultiplyAdd<DType::f64> = &multiply_add<double, Numbers>;
template <>
constexpr auto kMultiplyAdd<DType::bf16> = &multiply_add<float, Pairs>;

}  // namespace

#define MHA_PASTE_EXPANDED(a, b) a##b
#define MHA_PASTE(a, b) MHA_PASTE_EXPANDED(a, b)
const Loops& MHA_PASTE(loops_, MHA_PROBED_ISA)() {
  static constexpr Loops kLoops = {{
#define MHA_DTYPE(name, scalar, accumulator) kMultiplyAdd<DType::name>,
#include "mha/dtypes.def"
#undef MHA_DTYPE
                                   },
                                   &read_words};
  return kLoops;
}

}  // namespace mha::probes
