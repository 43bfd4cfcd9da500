#include "platform/isa_evidence.hpp"

#include <cstring>

namespace mha {
namespace {

constexpr char kAmd[] = "AuthenticAMD", kIntel[] = "GenuineIntel";
constexpr int kZen34 = 0x19, kZen5 = 0x1a;  // families of AMD; of these two Zen 4 alone has AVX-512
constexpr int kIntel6 = 6, kSapphireRapids = 0x8f, kEmeraldRapids = 0xcf;  // family and models of Intel
constexpr int kAny = Evidence::kAny;

// Of each instruction set the first row that fits counts. Where one pays the default is it, or a later one of the
// registry (cpp/cmake/isa.cmake) that pays, too. Rows come from the special to the general.
constexpr Evidence kEvidence[] = {
    // Alder Lake and later, Sierra Forest and its successors: 256 bits, and on hybrid parts both kinds of cores have
    // it.
    {"avxvnni", kIntel, kAny, kAny, true,
     "assumed: VPDPBUSD is one instruction where avx2 takes four for an int8 product"},
    {"avxvnni", nullptr, kAny, kAny, true, "assumed: as on Intel's processors"},

    {"avx512", kAmd, kZen5, kAny, true, "measured on Zen 5: twice the rate of avx2 in float32"},
    {"avx512", kAmd, kZen34, kAny, true,
     "measured on Zen 4: 1.11 to 1.19 times the rate of avx2 in float32, 2 times in float64"},
    // Servers have two units of 512 bits, client parts (Ice Lake to Rocket Lake) and small Xeons have one.
    {"avx512", kIntel, kAny, kAny, true, "assumed: one unit of 512 bits is as fast as two of 256, and most have two"},
    {"avx512", nullptr, kAny, kAny, true, "assumed: not slower than avx2"},

    {"avx512vnni", kAmd, kZen5, kAny, true,
     "measured on Zen 5: int8 products have 3.9 times the rate of float32, with avx512 1.4 times"},
    {"avx512vnni", kAmd, kZen34, kAny, true,
     "measured on Zen 4: layers with int8 weights have 1.9 to 2.1 times the rate that they have with avx512"},
    {"avx512vnni", kIntel, kIntel6, kSapphireRapids, true,
     "measured on Sapphire Rapids: int8 layers take 0.38 to 0.47 of the time that they take with avx512"},
    {"avx512vnni", kIntel, kIntel6, kEmeraldRapids, true,
     "measured on Emerald Rapids: int8 products have 4.2 times the rate that they have with avx512"},
    {"avx512vnni", nullptr, kAny, kAny, true,
     "assumed: VPDPBUSD is one instruction where avx512 takes four for an int8 product"},

    {"avx512bf16", kAmd, kZen5, kAny, true, "measured on Zen 5: VDPBF16PS multiplies 1.86 times as fast as float32"},
    {"avx512bf16", kAmd, kZen34, kAny, true,
     "measured on Zen 4: attention and layers in bfloat16 have 1.7 to 2 times the rate that they have with avx512"},
    {"avx512bf16", kAmd, kAny, kAny, true, "assumed: VDPBF16PS has the rate of a multiply-add, as on Zen 5"},
    {"avx512bf16", kIntel, kIntel6, kSapphireRapids, false,
     "measured on Sapphire Rapids: attention in bfloat16 is 20 to 45 % slower than with avx512"},
    {"avx512bf16", kIntel, kIntel6, kEmeraldRapids, false,
     "measured on Emerald Rapids: VDPBF16PS multiplies half as fast as float32"},
    // Cooper Lake, Granite Rapids.
    {"avx512bf16", kIntel, kAny, kAny, false, "assumed: VDPBF16PS is as slow as on Sapphire Rapids"},
    {"avx512bf16", nullptr, kAny, kAny, false, "assumed: nobody has measured VDPBF16PS there"},

    // docs/decisions/0021.
    {"amx", kIntel, kIntel6, kEmeraldRapids, true,
     "measured on Emerald Rapids: prompts and layers in bfloat16 take 0.27 to 0.9 of the time that they take with "
     "avx512vnni"},
    {"amx", kIntel, kAny, kAny, true, "assumed: as on Emerald Rapids"},
    {"amx", nullptr, kAny, kAny, false, "assumed: nobody else has made a processor with AMX"},

    // Arm's processors, none of which has been measured; docs/decisions/0022.
    {"neondot", nullptr, kAny, kAny, true,
     "assumed: SDOT is one instruction where neon takes several for an int8 product"},
    {"neonbf16", nullptr, kAny, kAny, false,
     "assumed: nobody has measured BFDOT, and it rounds less well than neon does"},

    {"amx_model", nullptr, kAny, kAny, false, "a model of amx, for tests, slow"},
};

bool fits(int expected, int number) { return expected == kAny || expected == number; }

}  // namespace

const Evidence* find_evidence(const char* isa, const Processor& processor) {
  for (const Evidence& row : kEvidence)
    if (std::strcmp(row.isa, isa) == 0 && (row.vendor == nullptr || processor.vendor == row.vendor) &&
        fits(row.family, processor.family) && fits(row.model, processor.model))
      return &row;
  return nullptr;
}

}  // namespace mha
