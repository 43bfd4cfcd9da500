#include "execute/shared_spans.hpp"

#include <algorithm>

#include "plan/key_bounds.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

/// More is not set aside for sums: it would be as much as keys and values are.
constexpr double kMostSumBytes = 64 << 20;
/// More sequences than that are not looked through for pages that they share.
constexpr Index kMostSequences = 1024;

/// The memory, part by part.
struct Parts {
  std::size_t order, members, sums, aside, total;

  Parts(const DTypeKernels& kernels, Index batch, Index kv_heads, Index spans, Index value_dim, int threads) {
    const std::size_t n = static_cast<std::size_t>(batch), span = kernels.decode.span_bytes(value_dim);
    order = 0;
    members = order + padded(n * sizeof(std::int32_t));
    sums = members + padded(n * static_cast<std::size_t>(spans));
    aside = sums + n * static_cast<std::size_t>(kv_heads * spans) * span;
    total = aside + static_cast<std::size_t>(threads) * most_span_bytes(kernels, value_dim);
  }
};

std::int32_t first_page(const KeyValues& keys, Index b) {
  return keys.tables.table_of(keys.sequences ? Index(keys.sequences[b]) : b)[0];
}

/// Whether two batch elements have span `span`, whole, in the same pages.
bool share_span(const AttentionPlan& plan, Index a, Index b, Index span) {
  const KeyValues& keys = plan.key_values;
  const Index first = span * kSpanKeys, last = first + kSpanKeys;
  if (std::min(plan.keys_of(a), plan.keys_of(b)) < last) return false;
  const auto page = [&](Index element, Index token) {
    return keys.tables.table_of(keys.sequences ? Index(keys.sequences[element]) : element) +
           token / keys.tables.page_rows;
  };
  return std::equal(page(a, first), page(a, last - 1) + 1, page(b, first));
}

/// Whether all rows of a batch element see all keys of the span.
bool sees_all(const AttentionPlan& plan, Index b, Index span) {
  const Index first = span * kSpanKeys, last = first + kSpanKeys;
  for (Index i = 0; i < plan.queries_of(b); ++i)
    if (const KeyBounds bounds = key_bounds(plan, b, i); bounds.first > first || bounds.last < last) return false;
  return true;
}

/// Whether scores do not depend on which head and position a row belongs to, by which the kernel for many rows knows
/// its rows.
bool has_plain_scores(const AttentionPlan& plan) {
  return !plan.attn_mask.data && !plan.alibi_slopes.data && !plan.position_bias.data;
}

}  // namespace

std::size_t most_span_bytes(const DTypeKernels& kernels, Index value_dim) {
  return std::max(kernels.attend.span_bytes(value_dim), kernels.decode.span_bytes(value_dim));
}

double shared_spans_bytes(const DTypeKernels& kernels, const KeyValues& keys, Index batch, Index kv_heads, Index rows,
                          Index spans, Index value_dim, int threads) {
  if (!keys.tables.pages || batch < 2 || batch > kMostSequences || spans < 2 || rows > kMaxDecodeRows ||
      2 * rows > kernels.query_tile_rows)
    return 0;
  const double bytes_of_span = double(kernels.decode.span_bytes(value_dim));
  if (double(batch) * double(kv_heads) * double(spans) * bytes_of_span > kMostSumBytes) return 0;
  bool some_share = false;
  for (Index b = 1; b < batch && !some_share; ++b)
    for (Index a = 0; a < b && !some_share; ++a) some_share = first_page(keys, a) == first_page(keys, b);
  return some_share ? double(Parts(kernels, batch, kv_heads, spans, value_dim, threads).total) : 0;
}

SharedSpans find_shared_spans(const AttentionPlan& plan, std::byte* memory, const Workers& workers) {
  SharedSpans found{};
  if (!plan.suits_decode || !plan.has_few_rows() || plan.key_mask || plan.block_mask.data || plan.spans < 2)
    return found;
  const Parts parts(*plan.kernels, plan.batch, plan.kv_heads, plan.spans, plan.value_dim, workers.threads);
  auto* const order = reinterpret_cast<std::int32_t*>(memory + parts.order);
  auto* const members = reinterpret_cast<std::uint8_t*>(memory + parts.members);
  Index count = 0, most_rows = 0;
  for (Index b = 0; b < plan.batch; ++b) {
    const Index rows = plan.group * plan.queries_of(b);
    if (rows > 0) order[count++] = static_cast<std::int32_t>(b);
    most_rows = std::max(most_rows, rows);
  }
  if (count < 2) return found;
  std::sort(order, order + count, [&](std::int32_t a, std::int32_t b) {
    const std::int32_t page_a = first_page(plan.key_values, a), page_b = first_page(plan.key_values, b);
    return page_a != page_b ? page_a < page_b : a < b;
  });
  const Index many = plan.kernels->query_tile_rows / most_rows, few = std::min(many, kMaxDecodeRows / most_rows);
  // Tiles of many rows are few: not where threads would wait for them.
  const bool are_many_rows = has_plain_scores(plan) && plan.kv_heads * plan.spans >= Index{2} * workers.threads;
  Index all = 0, read = 0;
  for (Index span = 0; span < plan.spans; ++span) {
    std::uint8_t* const of_span = members + span * count;
    std::fill_n(of_span, count, std::uint8_t{0});
    for (Index p = 0; p < count;) {
      Index next = p + 1;
      // A sequence without keys has sums, too, of the first span.
      if (span == 0 || plan.keys_of(order[p]) > span * kSpanKeys) {
        const bool is_whole = are_many_rows && sees_all(plan, order[p], span);
        const Index fit = is_whole ? many : few;
        while (next < count && next - p < fit && share_span(plan, order[p], order[next], span) &&
               (!is_whole || sees_all(plan, order[next], span)))
          ++next;
        of_span[p] = static_cast<std::uint8_t>(next - p);
        all += next - p;
        ++read;
      }
      p = next;
    }
  }
  // The savings must outweigh one more phase, and passing the sums of each span through memory.
  if ((all - read) * 8 < all) return found;
  return {count, order, members, memory + parts.sums, memory + parts.aside};
}

}  // namespace mha
