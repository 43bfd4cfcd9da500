#include "cases.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace mha::bench {
namespace {

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
  const auto kinds = {"sdpa", "ragged", "mha", "encoder_layer", "sentences"};
  const bool is_known =
      std::find(kinds.begin(), kinds.end(), c.kind) != kinds.end() && (c.dtype == "f32" || c.dtype == "f64");
  const bool is_positive = std::min({c.B, c.H, c.Hk, c.Tq, c.Tk, c.D}) > 0;
  if (!is_known || !is_positive || c.H % c.Hk != 0)
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
  double pairs = 0;
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    const Index length = Index(starts[b + 1] - starts[b]);
    pairs += pairs_of(*this, length, length);
  }
  return pairs;
}

double Case::flops() const {
  const double products = double(queries()) * double(8 * E * E + 4 * E * F);
  return double(layers) * (4 * double(H * D) * visible_pairs() + products);
}

double Case::least_bytes() const {
  Index elements;
  if (E > 0) {
    const Index feed_forward = F > 0 ? F * (2 * E + 1) + 5 * E : 0;  // with two norms
    elements = 2 * queries() * E + layers * (4 * E * (E + 1) + feed_forward);
  } else {
    const Index keys = is_ragged() ? queries() : B * Tk;
    elements = 2 * D * (H * queries() + Hk * keys);
  }
  return double(elements) * size_of(element());
}

}  // namespace mha::bench
