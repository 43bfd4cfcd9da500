#include "platform/known_answers.hpp"

#include <cstring>

namespace mha {
namespace {

constexpr int kRows = 16, kColumns = 16, kPairs = 32, kBytes = 64;

/// Knuth's generator, "The Art of Computer Programming", volume 2, section 3.3.4.
class Numbers {
 public:
  std::uint32_t next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state_ >> 33);
  }
  /// A bfloat16 of one of `exponents` exponents from `least` on; 0 is the exponent of subnormal numbers.
  std::uint16_t bf16(std::uint32_t least, std::uint32_t exponents) {
    const std::uint32_t exponent = least + next() % exponents;
    return static_cast<std::uint16_t>(exponent << 7 | (next() & 0x807f));
  }

 private:
  std::uint64_t state_ = 1;
};

/// FNV-1a.
template <class T, int kCount>
std::uint64_t digest(const T (&results)[kCount]) {
  std::uint64_t sum = 0xcbf29ce484222325U;
  unsigned char bytes[sizeof results];
  std::memcpy(bytes, results, sizeof results);
  for (const unsigned char byte : bytes) sum = (sum ^ byte) * 0x100000001b3U;
  return sum;
}

struct Bf16Case {
  std::uint32_t least_a, exponents_a, least_b, exponents_b, least_c, exponents_c;
  std::uint64_t answer;
};

// Sums of numbers of both signs and many sizes, which round and cancel; products around 2^-126, which underflow, of
// factors some of which are subnormal.
constexpr Bf16Case kBf16Cases[] = {
    {120, 16, 120, 16, 110, 40, 0xb704cee6ba9bf6c9U},
    {0, 70, 50, 20, 0, 3, 0x83a284252adea588U},
};
constexpr std::uint64_t kByteAnswer = 0x9942ec6863a047ebU;

}  // namespace

bool gives_known_answers(const TileInstructions& tiles) {
  Numbers numbers;
  for (const Bf16Case& one : kBf16Cases) {
    alignas(64) BFloat16 a[kRows * kPairs], b[kPairs * kColumns];
    alignas(64) float c[kRows * kColumns];
    for (BFloat16& x : a) x.bits = numbers.bf16(one.least_a, one.exponents_a);
    for (BFloat16& x : b) x.bits = numbers.bf16(one.least_b, one.exponents_b);
    for (float& x : c) {
      const std::uint32_t bits =
          std::uint32_t{numbers.bf16(one.least_c, one.exponents_c)} << 16 | numbers.next() % 65536;
      std::memcpy(&x, &bits, sizeof x);
    }
    tiles.multiply_bf16(a, b, c);
    if (digest(c) != one.answer) return false;
  }
  alignas(64) std::uint8_t a[kRows * kBytes];
  alignas(64) std::int8_t b[kBytes * kColumns];
  alignas(64) std::int32_t c[kRows * kColumns];
  for (std::uint8_t& x : a) x = static_cast<std::uint8_t>(numbers.next());
  for (std::int8_t& x : b) x = static_cast<std::int8_t>(numbers.next());
  for (std::int32_t& x : c) x = static_cast<std::int32_t>(numbers.next());
  tiles.multiply_bytes(a, b, c);
  return digest(c) == kByteAnswer;
}

}  // namespace mha
