#include "cases.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <utility>

namespace mha::bench {
namespace {

/// The names that cases.toml uses are those of the library.
template <class Named>
Named find_name(const std::string& name, std::initializer_list<std::pair<const char*, Named>> all, const Case& c) {
  for (const auto& [known, value] : all)
    if (name == known) return value;
  throw std::invalid_argument("cases.toml: case " + c.name + " has " + name + ", which is not known");
}

/// Of `queries` queries and `keys` keys.
double pairs_of(const Case& c, Index queries, Index keys) {
  double pairs = 0;
  for (Index i = 0; i < queries; ++i) {
    const Index first = c.window[0] < 0 ? 0 : std::max<Index>(0, i - c.window[0]);
    Index last = keys;
    if (c.causal) last = std::min(last, i + 1);
    if (c.window[1] >= 0) last = std::min(last, i + c.window[1] + 1);
    if (c.admitted > 0) last = std::min(last, c.admitted);
    pairs += double(std::max<Index>(0, last - first));
  }
  return pairs;
}

void resolve(Case& c) {
  if (c.Hk == 0) c.Hk = c.H;
  if (c.Tk == 0) c.Tk = c.Tq;
  if (c.E > 0 && c.H > 0) c.D = c.E / c.H;
  if (c.kind == "sentences" && c.shortest == 0) c.shortest = c.Tq;
  const auto kinds = {"sdpa",
                      "cached",
                      "ragged",
                      "mha",
                      "step",
                      "encoder_layer",
                      "sentences",
                      "images",
                      "decoder",
                      "attention_backward",
                      "linear_backward",
                      "training",
                      "experts",
                      "linear",
                      "maxsim"};
  const bool is_known = std::find(kinds.begin(), kinds.end(), c.kind) != kinds.end();
  const bool is_positive = std::min({c.B, c.H, c.Hk, c.Tq, c.Tk, c.D}) > 0;
  const bool has_format = !c.weights.empty();
  if (!is_known || !is_positive || c.H % c.Hk != 0 || (has_format && (c.E == 0 || c.element() != DType::f32)))
    throw std::invalid_argument("cases.toml: case " + c.name + " breaks a rule of the file");
}

std::vector<Case> make_cases() {
  std::vector<Case> all;
  const auto add = [&](Case& row) {
    resolve(row);
    all.push_back(row);
  };
  const auto case_named = [&](const char* name) {
    for (const Case& c : all)
      if (c.name == name) return c;
    throw std::invalid_argument(std::string("cases.toml: no case above is called ") + name);
  };
#include "cases.inc"
  return all;
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> all = make_cases();
  return all;
}

DType Case::element() const {
  return find_name<DType>(dtype, {{"f32", DType::f32}, {"f64", DType::f64}, {"bf16", DType::bf16}, {"f16", DType::f16}},
                          *this);
}

WeightFormat Case::weight_format() const {
  return find_name<WeightFormat>(weights,
                                 {{"", WeightFormat::plain},
                                  {"bf16", WeightFormat::bf16},
                                  {"int8", WeightFormat::int8},
                                  {"int4", WeightFormat::int4}},
                                 *this);
}

double Case::weight_bytes() const { return weights.empty() ? size_of(element()) : bits_of(weight_format()) / 8; }

DType Case::cached() const {
  return find_name<DType>(cache, {{"", element()}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"int8", DType::int8}},
                          *this);
}

std::vector<std::int64_t> Case::offsets() const {
  std::vector<std::int64_t> lengths;
  for (Index b = 0; b < B; ++b) {
    const double share = B > 1 ? double(b) / double(B - 1) : 0;
    lengths.push_back(std::llrint(double(shortest) + share * double(Tq - shortest)));
  }
  // Steps of 5/8 of the batch, or near it: neighbours differ much, and every length comes once.
  std::vector<std::int64_t> starts = {0};
  Index step = std::max<Index>(1, B * 5 / 8);
  const auto divides_both = [&](Index d) { return B % d == 0 && step % d == 0; };
  const auto is_coprime = [&] {
    for (Index d = 2; d <= step; ++d)
      if (divides_both(d)) return false;
    return true;
  };
  while (!is_coprime()) --step;
  for (Index i = 0; i < B; ++i) starts.push_back(starts.back() + lengths[std::size_t(i * step % B)]);
  return starts;
}

double Case::visible_pairs() const {
  if (!is_ragged()) return double(B) * pairs_of(*this, Tq, Tk);
  const auto starts = offsets();
  double visible = 0;
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    const Index length = Index(starts[b + 1] - starts[b]);
    visible += pairs_of(*this, length, length);
  }
  return visible;
}

double Case::flops() const {
  const Index keys = is_cross() ? B * Tk : queries();
  const double products = 4 * double(queries() + keys) * double(E * E) + 4 * double(queries()) * double(E * F);
  return double(layers) * (4 * double(H * D) * visible_pairs() + products);
}

double Case::least_bytes() const {
  const double size = size_of(element());
  if (E > 0) {
    const Index matrices = 4 * E * E + 2 * E * F, others = 4 * E + (F > 0 ? F + 5 * E : 0);  // biases, two norms
    return double(layers) * (double(matrices) * weight_bytes() + double(others) * size) +
           double((2 * queries() + (is_cross() ? B * Tk : 0)) * E) * size +
           (kind == "step" ? double(2 * B * Tk * E) * size_of(cached()) : 0);
  }
  const Index keys = is_ragged() ? queries() : B * Tk;
  return double(2 * D * (H * queries() + Hk * keys)) * size;
}

double Case::tolerance(double largest) const {
  double eps = std::numeric_limits<float>::epsilon();
  if (element() == DType::f64) eps = std::numeric_limits<double>::epsilon();
  if (element() == DType::f16 || cached() == DType::f16) eps = 0x1p-10;
  if (element() == DType::bf16 || cached() == DType::bf16 || !weights.empty()) eps = 0x1p-7;
  if (weight_format() == WeightFormat::int4) eps = 0x1p-3;  // the largest of 16 weights becomes 8, about
  const bool is_narrow = eps > 0x1p-11;
  const double terms = double(is_narrow ? layers : std::max({D, Tk, E, F}));
  return 8 * eps * std::sqrt(terms) * std::max(scores, 1.0) * largest + double(std::numeric_limits<float>::min());
}

}  // namespace mha::bench
