// Which scores a tile computes: the blocks of keys that some query of it sees, and within a block the vectors of
// queries that see some key of it. Keys and values that no query sees are never read.
#pragma once

#include "kernels/attention/key_value_source.hpp"

namespace mha::MHA_ISA {
namespace {

/// Keys [begin, end) of a block, all of which are seen by the same vectors of queries.
struct Segment {
  Index begin, end;
  int first_vector, vectors;
  bool modified;  // products must be modified to become scores
  bool is_cut;    // a bound of some query runs through it
};

struct KeyBlock {
  Index begin, end;
  bool has_bits;   // boolean masks are to be applied
  bool has_bias;   // an attn_mask is to be added
  bool is_filled;  // what both come to has been written as biases
  bool is_masked;  // some query does not see some key
  bool begins_span;
  int segment_count;
  Segment segments[2 * kVectors + 1];

  bool is_cut() const {
    for (int i = 0; i < segment_count; ++i)
      if (segments[i].is_cut) return true;
    return false;
  }
};

/// The bounds of the queries of a tile, vector by vector.
template <class S>
class KeyBlocks {
 public:
  static constexpr Index L = kLanes<Compute<S>>;

  KeyBlocks(const AttentionTile& tile, int vectors) : vectors_(vectors) {
    // Neither bound falls from row to row, and the rows that see some key are neighbours. So the bounds of a vector are
    // the bounds of its outer rows.
    const auto sees_nothing = [&](Index r) { return tile.first_key[r] >= tile.last_key[r]; };
    for (int j = 0; j < vectors_; ++j) {
      Index first = j * L, last = (j + 1) * L < tile.rows ? (j + 1) * L - 1 : tile.rows - 1;
      all_first_[j] = tile.first_key[last];
      all_last_[j] = tile.last_key[first];
      while (first < last && sees_nothing(first)) ++first;
      while (first < last && sees_nothing(last)) --last;
      const bool is_seeing = !sees_nothing(first);
      any_first_[j] = is_seeing ? tile.first_key[first] : 0;
      any_last_[j] = is_seeing ? tile.last_key[last] : 0;
      end_ = any_last_[j] > end_ ? any_last_[j] : end_;
    }
    begin_ = end_;
    // The end of a segment must not cut an operand of two keys, nor keys that are summed together.
    constexpr Index kKeys = OperandsOf<S>::kGroup;
    for (int j = 0; j < vectors_; ++j) {
      const Index last = (any_last_[j] + kKeys - 1) / kKeys * kKeys;
      any_first_[j] -= any_first_[j] % kKeys;
      any_last_[j] = last < end_ ? last : end_;
      if (any_first_[j] < any_last_[j] && any_first_[j] < begin_) begin_ = any_first_[j];
    }
  }

  /// Calls visit(block, begin) for every block of keys that some row sees, in order; `begin` is the first key in it
  /// that a row sees.
  template <class Visitor>
  MHA_INLINE void for_each(const KeyValueRows<S>& source, Visitor visit) const {
    for (Index begin = begin_; begin < end_;) {
      const Index edge = (begin / kKeyBlock + 1) * kKeyBlock;
      KeyBlock block{begin - begin % kKeyBlock, edge < end_ ? edge : end_, false, false, false, false, false, 0, {}};
      if (source.is_seen(block.begin)) visit(block, begin);
      begin = block.end;
    }
  }

  /// Cuts the block from key `begin` on into segments, where the set of vectors that see some key changes. Segments
  /// that a bound runs through are modified, or all of them if `modifies_all`.
  void cut(KeyBlock& block, Index begin, bool modifies_all) const {
    while (begin < block.end) {
      Index end = block.end;
      int first_vector = vectors_, last_vector = -1;
      bool is_cut = false;
      for (int j = 0; j < vectors_; ++j) {
        if (any_first_[j] > begin && any_first_[j] < end) end = any_first_[j];
        if (any_last_[j] > begin && any_last_[j] < end) end = any_last_[j];
      }
      for (int j = 0; j < vectors_; ++j) {
        if (any_first_[j] > begin || any_last_[j] <= begin) continue;
        first_vector = j < first_vector ? j : first_vector;
        last_vector = j;
        is_cut |= all_first_[j] > begin || all_last_[j] < end;
      }
      if (last_vector >= 0)
        block.segments[block.segment_count++] = {
            begin, end, first_vector, last_vector - first_vector + 1, modifies_all || is_cut, is_cut};
      block.is_masked |= is_cut;
      begin = end;
    }
  }

  /// Keys of the block that vector j has scores for.
  Index first_in(const KeyBlock& block, int j) const {
    return any_first_[j] > block.begin ? any_first_[j] : block.begin;
  }
  Index last_in(const KeyBlock& block, int j) const { return any_last_[j] < block.end ? any_last_[j] : block.end; }

  /// Where the keys that some row sees begin and end.
  Index begin() const { return begin_; }
  Index end() const { return end_; }

 private:
  int vectors_;
  Index begin_ = 0, end_ = 0;
  // For each vector of queries: the keys that at least one of them sees, and those that all of them see.
  Index any_first_[kVectors], any_last_[kVectors], all_first_[kVectors], all_last_[kVectors];
};

}  // namespace
}  // namespace mha::MHA_ISA
