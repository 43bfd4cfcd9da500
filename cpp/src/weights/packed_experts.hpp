// The weights of a feed-forward network with experts, as pointers to its packed parts.
#pragma once

#include <algorithm>
#include <vector>

#include "mha/transformer.hpp"
#include "weights/packed_feed_forward.hpp"

namespace mha {

struct PackedExperts {
  ExpertsConfig config;
  const PackedLinear* router;
  std::vector<const PackedFeedForward*> experts;
  const PackedFeedForward* shared;  // null: none
  const PackedLinear* shared_gate;  // null: none
  std::vector<double> correction;   // of the scores, where experts are chosen; empty: 0
  // Of the experts the first with each combination of formats: the others need no other scratch memory.
  std::vector<const PackedFeedForward*> kinds = {};

  void add(const PackedFeedForward* expert) {
    experts.push_back(expert);
    const auto is_alike = [&](const PackedFeedForward* kind) { return kind->has_formats_of(*expert); };
    if (std::none_of(kinds.begin(), kinds.end(), is_alike)) kinds.push_back(expert);
  }

  Index num_experts() const { return static_cast<Index>(experts.size()); }
  Index embed_dim() const { return router->in_features(); }
  Index feedforward_dim() const { return experts[0]->down.in_features(); }
  Index shared_dim() const { return shared ? shared->down.in_features() : 0; }
  DType dtype() const { return router->dtype(); }

  /// PackedLinear::work() of all projections of so many rows, which choose different experts while there are any.
  double work(double rows) const {
    const double chosen = rows * double(config.experts_per_token);
    const double used = std::min(chosen, double(num_experts()));
    return router->work(rows) + (used > 0 ? used * experts[0]->work(chosen / used) : 0) +
           (shared ? shared->work(rows) : 0);
  }
};

}  // namespace mha
