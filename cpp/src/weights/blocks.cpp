#include "weights/blocks.hpp"

#include <cstring>

#include "kernels/kernel_table.hpp"
#include "mha/half_precision.hpp"

namespace mha {
namespace {

constexpr Index kMostFeatures = 256;

/// The parts of a block in an order that all formats share: codes of features, numbers of binary16, and bytes.
struct Block {
  std::uint8_t codes[kMostFeatures];
  std::uint16_t numbers[2];
  std::uint8_t bytes[16];  // scales of parts, then offsets of parts
};

/// A part of a block in the file, and what follows it.
template <class Byte>
struct Cursor {
  Byte* at;
  Byte* take(Index bytes) {
    Byte* const part = at;
    at += bytes;
    return part;
  }
};
using From = Cursor<const std::uint8_t>;
using To = Cursor<std::uint8_t>;

// Each of the following has a form that reads a part of a file, and one that writes it.

void pass_number(From& file, std::uint16_t& number) { std::memcpy(&number, file.take(2), 2); }
void pass_number(To& file, const std::uint16_t& number) { std::memcpy(file.take(2), &number, 2); }

/// Low four bits: of each run of 2 n features the first n in the low halves of n bytes, the others in the high halves.
void pass_nibbles(From& file, std::uint8_t* codes, Index features, Index n) {
  for (Index first = 0; first < features; first += 2 * n) {
    const std::uint8_t* const pairs = file.take(n);
    for (Index i = 0; i < n; ++i) {
      codes[first + i] = pairs[i] & 15;
      codes[first + n + i] = pairs[i] >> 4;
    }
  }
}
void pass_nibbles(To& file, const std::uint8_t* codes, Index features, Index n) {
  for (Index first = 0; first < features; first += 2 * n) {
    std::uint8_t* const pairs = file.take(n);
    for (Index i = 0; i < n; ++i)
      pairs[i] = static_cast<std::uint8_t>((codes[first + i] & 15) | (codes[first + n + i] & 15) << 4);
  }
}

/// High bits: byte i of n has `bits` bits, from the lowest on, of features i, i + n, i + 2 n, ...
void pass_high_bits(From& file, std::uint8_t* codes, Index n, int bits) {
  const std::uint8_t* const high = file.take(n);
  const int mask = (1 << bits) - 1;
  for (Index part = 0; part < 8 / bits; ++part)
    for (Index i = 0; i < n; ++i)
      codes[part * n + i] |= static_cast<std::uint8_t>((high[i] >> part * bits & mask) << 4);
}
void pass_high_bits(To& file, const std::uint8_t* codes, Index n, int bits) {
  std::uint8_t* const high = file.take(n);
  for (Index i = 0; i < n; ++i) {
    int byte = 0;
    for (Index part = 0; part < 8 / bits; ++part) byte |= codes[part * n + i] >> 4 << part * bits;
    high[i] = static_cast<std::uint8_t>(byte);
  }
}

/// The fifth bits of a block of 32: bit i % 8 of byte i / 8 belongs to feature i.
void pass_fifth_bits(From& file, std::uint8_t* codes) {
  constexpr std::uint64_t kBytes = 0x0101010101010101;  // 1 in each byte
  const std::uint8_t* const high = file.take(4);
  for (Index i = 0; i < 4; ++i, codes += 8) {
    const std::uint64_t bit_of_byte = high[i] * kBytes & 0x8040201008040201;  // bit j is in byte j, at place j
    std::uint64_t eight;
    std::memcpy(&eight, codes, sizeof eight);
    eight |= ((bit_of_byte + 0x7f * kBytes) & 0x80 * kBytes) >> 3;
    std::memcpy(codes, &eight, sizeof eight);
  }
}
void pass_fifth_bits(To& file, const std::uint8_t* codes) {
  std::uint8_t* const high = file.take(4);
  std::memset(high, 0, 4);
  for (Index i = 0; i < 32; ++i) high[i / 8] |= static_cast<std::uint8_t>(codes[i] >> 4 << i % 8);
}

/// Scales and offsets of six bits of eight parts, in 12 bytes: super_blocks of llama.cpp.
void pass_small_scales(From& file, std::uint8_t* bytes) {
  const std::uint8_t* const packed = file.take(12);
  for (Index i = 0; i < 4; ++i) {
    bytes[i] = packed[i] & 63;
    bytes[8 + i] = packed[4 + i] & 63;
    bytes[4 + i] = static_cast<std::uint8_t>((packed[8 + i] & 15) | packed[i] >> 6 << 4);
    bytes[12 + i] = static_cast<std::uint8_t>(packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4);
  }
}
void pass_small_scales(To& file, const std::uint8_t* bytes) {
  std::uint8_t* const packed = file.take(12);
  for (Index i = 0; i < 4; ++i) {
    packed[i] = static_cast<std::uint8_t>((bytes[i] & 63) | bytes[4 + i] >> 4 << 6);
    packed[4 + i] = static_cast<std::uint8_t>((bytes[8 + i] & 63) | bytes[12 + i] >> 4 << 6);
    packed[8 + i] = static_cast<std::uint8_t>((bytes[4 + i] & 15) | (bytes[12 + i] & 15) << 4);
  }
}

void pass_bytes(From& file, std::uint8_t* bytes, Index count, int flip) {
  const std::uint8_t* const from = file.take(count);
  for (Index i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(from[i] ^ flip);
}
void pass_bytes(To& file, const std::uint8_t* bytes, Index count, int flip) {
  std::uint8_t* const to = file.take(count);
  for (Index i = 0; i < count; ++i) to[i] = static_cast<std::uint8_t>(bytes[i] ^ flip);
}

/// The layout of a block in a file, part by part: reads a block from it, or writes a constant one to it.
template <class File, class AnyBlock>
void pass_block(WeightFormat format, File file, AnyBlock& block) {
  switch (format) {
    case WeightFormat::q4_0:
    case WeightFormat::iq4_nl:
      pass_number(file, block.numbers[0]);
      return pass_nibbles(file, block.codes, 32, 16);
    case WeightFormat::q4_1:
      pass_number(file, block.numbers[0]);
      pass_number(file, block.numbers[1]);
      return pass_nibbles(file, block.codes, 32, 16);
    case WeightFormat::q5_0: {
      pass_number(file, block.numbers[0]);
      File high{file.take(4)};
      pass_nibbles(file, block.codes, 32, 16);
      return pass_fifth_bits(high, block.codes);
    }
    case WeightFormat::q5_1: {
      pass_number(file, block.numbers[0]);
      pass_number(file, block.numbers[1]);
      File high{file.take(4)};
      pass_nibbles(file, block.codes, 32, 16);
      return pass_fifth_bits(high, block.codes);
    }
    case WeightFormat::q8_0:
      pass_number(file, block.numbers[0]);
      return pass_bytes(file, block.codes, 32, 0x80);
    case WeightFormat::mxfp4:
      pass_bytes(file, block.bytes, 1, 0);
      return pass_nibbles(file, block.codes, 32, 16);
    case WeightFormat::q4_k:
      pass_number(file, block.numbers[0]);
      pass_number(file, block.numbers[1]);
      pass_small_scales(file, block.bytes);
      return pass_nibbles(file, block.codes, 256, 32);
    case WeightFormat::q5_k: {
      pass_number(file, block.numbers[0]);
      pass_number(file, block.numbers[1]);
      pass_small_scales(file, block.bytes);
      File high{file.take(32)};
      pass_nibbles(file, block.codes, 256, 32);
      return pass_high_bits(high, block.codes, 32, 1);
    }
    case WeightFormat::q6_k: {
      pass_nibbles(file, block.codes, 256, 64);
      pass_high_bits(file, block.codes, 32, 2);
      pass_high_bits(file, block.codes + 128, 32, 2);
      pass_bytes(file, block.bytes, 16, 0);
      return pass_number(file, block.numbers[0]);
    }
    default:
      return;
  }
}

/// Where byte i of a block lies among the rows of bytes. Offsets of parts lie in pairs.
Index place_of_byte(WeightFormat format, Index i, Index column) {
  if (format == WeightFormat::q6_k || i < 8) return i * kPanelColumns + column;
  return i / 2 * 2 * kPanelColumns + 2 * column + i % 2;
}

// The codes of four features, a byte each, are a word here, and the four bytes of a column in a row of a panel are another
// one: `rows` points to the first row.

std::uint32_t word_at(const std::uint8_t* at) {
  std::uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}
void set_word(std::uint8_t* at, std::uint32_t word) { std::memcpy(at, &word, sizeof word); }

constexpr std::uint32_t kInBytes = 0x01010101;

/// The codes of kCodeFeatures features to their rows.
void pack_codes(int code_bits, const std::uint8_t* codes, std::uint8_t* rows) {
  constexpr Index kWords = kCodeFeatures / 4;
  if (code_bits == 8) {
    for (Index w = 0; w < kWords; ++w) set_word(rows + w * kPanelBytes, word_at(codes + 4 * w));
    return;
  }
  for (Index w = 0; w < kWords; w += 2, codes += 8, rows += kPanelBytes)
    set_word(rows, (word_at(codes) & 15 * kInBytes) | (word_at(codes + 4) & 15 * kInBytes) << 4);
  codes -= kCodeFeatures;
  const int bits = code_bits - 4;
  for (Index w = 0; bits > 0 && w < kWords; rows += kPanelBytes) {
    std::uint32_t row = 0;
    for (int at = 0; at < 8; at += bits, ++w)
      row |= (word_at(codes + 4 * w) >> 4 & ((1u << bits) - 1) * kInBytes) << at;
    set_word(rows, row);
  }
}

/// The inverse.
void unpack_codes(int code_bits, const std::uint8_t* rows, std::uint8_t* codes) {
  constexpr Index kWords = kCodeFeatures / 4;
  if (code_bits == 8) {
    for (Index w = 0; w < kWords; ++w) set_word(codes + 4 * w, word_at(rows + w * kPanelBytes));
    return;
  }
  for (Index w = 0; w < kWords; w += 2, rows += kPanelBytes) {
    set_word(codes + 4 * w, word_at(rows) & 15 * kInBytes);
    set_word(codes + 4 * w + 4, word_at(rows) >> 4 & 15 * kInBytes);
  }
  const int bits = code_bits - 4;
  for (Index w = 0; bits > 0 && w < kWords; rows += kPanelBytes)
    for (int at = 0; at < 8; at += bits, ++w)
      set_word(codes + 4 * w, word_at(codes + 4 * w) | (word_at(rows) >> at & ((1u << bits) - 1) * kInBytes) << 4);
}

float number_of(std::uint16_t bits) {
  Float16 number;
  std::memcpy(&number, &bits, sizeof number);
  return static_cast<float>(to_double(number));
}

/// The scale of MXFP4, 2^(exponent - 128): half of an OCP scale, since codes stand for twice their values.
float scale_of(std::uint8_t exponent) {
  const std::uint32_t bits = exponent < 2 ? 0x00200000u << exponent : std::uint32_t(exponent - 1) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return scale;
}

constexpr float kValuesOfIq4Nl[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float kValuesOfMxfp4[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// The weights of a block of 32: `scale` times the values of codes.
template <class Value>
void scale_codes(const Block& block, float scale, float* weights, Value value) {
  for (Index i = 0; i < 32; ++i) weights[i] = value(block.codes[i]) * scale;
}
void offset_codes(const Block& block, float* weights) {
  const float scale = number_of(block.numbers[0]), offset = number_of(block.numbers[1]);
  for (Index i = 0; i < 32; ++i) weights[i] = float(block.codes[i]) * scale + offset;
}
void scale_parts(const Block& block, float* weights) {
  const float scale = number_of(block.numbers[0]), least = number_of(block.numbers[1]);
  for (Index part = 0; part < 8; ++part) {
    const float of_part = scale * float(block.bytes[part]), offset = least * float(block.bytes[8 + part]);
    for (Index i = 32 * part; i < 32 * (part + 1); ++i) weights[i] = float(block.codes[i]) * of_part - offset;
  }
}

/// pack_block of one format, whose sizes the compiler knows.
template <WeightFormat kFormat>
void pack_block_of(const std::byte* block, std::byte* unit, Index column) {
  constexpr BlockPanel kPanel = block_panel(kFormat);
  Block parts{};
  pass_block(kFormat, From{reinterpret_cast<const std::uint8_t*>(block)}, parts);
  auto* const to = reinterpret_cast<std::uint8_t*>(unit);
  for (Index first = 0; first < kPanel.features; first += kCodeFeatures)
    pack_codes(kPanel.code_bits, parts.codes + first, to + first / kCodeFeatures * kPanel.code_bytes() + 4 * column);
  for (Index i = 0; i < kPanel.numbers; ++i)
    std::memcpy(to + kPanel.numbers_at() + 2 * (i * kPanelColumns + column), &parts.numbers[i], 2);
  for (Index i = 0; i < kPanel.bytes; ++i) to[kPanel.bytes_at() + place_of_byte(kFormat, i, column)] = parts.bytes[i];
}

}  // namespace

void pack_block(WeightFormat format, const std::byte* block, std::byte* unit, Index column) {
  switch (format) {
#define MHA_WEIGHT_FORMAT(name, constant, spelling, features, group, has_scales, block_features, block_bytes) \
  case WeightFormat::name:                                                                                    \
    if constexpr (has_blocks(WeightFormat::name)) pack_block_of<WeightFormat::name>(block, unit, column);     \
    return;
#include "mha/weight_formats.def"
#undef MHA_WEIGHT_FORMAT
  }
}

void unpack_block(WeightFormat format, const std::byte* unit, Index column, std::byte* block) {
  const BlockPanel panel = block_panel(format);
  Block parts{};
  const auto* const from = reinterpret_cast<const std::uint8_t*>(unit);
  for (Index first = 0; first < panel.features; first += kCodeFeatures)
    unpack_codes(panel.code_bits, from + first / kCodeFeatures * panel.code_bytes() + 4 * column, parts.codes + first);
  for (Index i = 0; i < panel.numbers; ++i)
    std::memcpy(&parts.numbers[i], from + panel.numbers_at() + 2 * (i * kPanelColumns + column), 2);
  for (Index i = 0; i < panel.bytes; ++i) parts.bytes[i] = from[panel.bytes_at() + place_of_byte(format, i, column)];
  const Block& all = parts;
  pass_block(format, To{reinterpret_cast<std::uint8_t*>(block)}, all);
}

void dequantize_blocks(WeightFormat format, const std::byte* blocks, Index count, float* weights) {
  const Index bytes = block_bytes(format), features = block_features(format);
  for (Index b = 0; b < count; ++b, blocks += bytes, weights += features) {
    Block block{};
    pass_block(format, From{reinterpret_cast<const std::uint8_t*>(blocks)}, block);
    const float scale = number_of(block.numbers[0]);
    switch (format) {
      case WeightFormat::q4_0:
        scale_codes(block, scale, weights, [](int code) { return float(code - 8); });
        break;
      case WeightFormat::q5_0:
        scale_codes(block, scale, weights, [](int code) { return float(code - 16); });
        break;
      case WeightFormat::q8_0:
        scale_codes(block, scale, weights, [](int code) { return float(code - 128); });
        break;
      case WeightFormat::iq4_nl:
        scale_codes(block, scale, weights, [](int code) { return kValuesOfIq4Nl[code]; });
        break;
      case WeightFormat::mxfp4:
        scale_codes(block, scale_of(block.bytes[0]), weights, [](int code) { return kValuesOfMxfp4[code]; });
        break;
      case WeightFormat::q4_1:
      case WeightFormat::q5_1:
        offset_codes(block, weights);
        break;
      case WeightFormat::q4_k:
      case WeightFormat::q5_k:
        scale_parts(block, weights);
        break;
      case WeightFormat::q6_k:
        for (Index part = 0; part < 16; ++part) {
          const float of_part = scale * float(static_cast<std::int8_t>(block.bytes[part]));
          for (Index i = 16 * part; i < 16 * (part + 1); ++i) weights[i] = float(block.codes[i] - 32) * of_part;
        }
        break;
      default:
        break;
    }
  }
}

}  // namespace mha
