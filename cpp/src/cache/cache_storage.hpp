// The storage of a KVCache: memory for rows, and the rows of each token of each sequence. The two forms are
// dense_storage.hpp and paged_storage.hpp; both write and read rows by the same code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/kernel_table.hpp"
#include "mha/kv_cache.hpp"
#include "views/cache_memory.hpp"

namespace mha {

/// Arguments are checked before (checks/kv_cache.hpp). A function that fails changes nothing.
class CacheStorage {
 public:
  virtual ~CacheStorage() = default;
  CacheStorage(const CacheStorage&) = delete;
  CacheStorage& operator=(const CacheStorage&) = delete;

  const KVCacheConfig& config() const { return config_; }
  const CacheMemory& memory() const { return memory_; }
  /// [B]: tokens of each sequence.
  const std::int64_t* lengths() const { return lengths_; }

  /// Makes sure that the rows of the next `count` tokens of each sequence, or new_lengths[b] of sequence b, are there
  /// and belong to it alone. They lie where memory().tables says.
  /// @throws std::invalid_argument in the name of `function`, if there is no room
  virtual void reserve(const char* function, Index count, const std::int64_t* new_lengths) = 0;
  /// Everything as before reserve(), if advance() has not come since.
  virtual void give_back() noexcept = 0;
  /// Counts reserved rows as tokens.
  virtual void advance(Index count, const std::int64_t* new_lengths);
  /// Whether tokens would fit once clear() has been called. @throws std::invalid_argument in the name of `function`
  virtual void check_room_of_all(const char* function, Index count, const std::int64_t* new_lengths) const = 0;

  /// Writes tokens [B, Hk, T, D] and [B, Hk, T, Dv] to reserved rows, of sequence b the first new_lengths[b] (null:
  /// all). `table` quantizes tokens of int8.
  void write(const TensorView& key, const TensorView& value, const std::int64_t* new_lengths,
             const KernelTable& table) const;
  /// The same as they are stored, with the scales of each, [B, Hk, T, 1], if they are of int8.
  void write_stored(const TensorView& key, const TensorView& value, const TensorView& key_scale,
                    const TensorView& value_scale, const std::int64_t* new_lengths) const {
    write_stored(sequences(), key, value, key_scale, value_scale, new_lengths);
  }

  /// Copies the tokens of `rows`, which is one tensor of memory(), to [B, Hk, T, columns], followed by zeros.
  void read(const TensorView& rows, const MutableTensorView& out) const { read(sequences(), rows, out); }

  /// Sequence b loses its newest counts[b] tokens (null: `count`).
  virtual void rollback(std::int64_t count, const std::int64_t* counts) = 0;
  virtual void reorder(const std::int64_t* index) = 0;
  virtual void keep_last(std::int64_t count) = 0;
  virtual void clear() = 0;

 protected:
  /// Where rows of one kind lie, keys or values.
  struct Rows {
    std::byte* data;
    Index row;             // bytes of one token of one head
    Index head, sequence;  // bytes from one head, or one sequence, to the next

    std::byte* at(Index b, Index h, Index r) const { return data + b * sequence + h * head + r * row; }
  };

  /// Memory for `rows` rows of each head, of each sequence or, with `is_shared`, of all together, and for `integers`
  /// more numbers of 64 bits. All of it is 0, and is taken from the operating system as it is first written to.
  CacheStorage(const KVCacheConfig& config, Index rows, bool is_shared, Index integers);
  /// The same in rows of the caller's, [B, Hk, rows, D] and [B, Hk, rows, Dv], whose contents stay.
  CacheStorage(const KVCacheConfig& config, const MutableTensorView& keys, const MutableTensorView& values,
               Index integers);

  void set_tables(const PageTables& tables) { memory_.tables = tables; }

  /// All rows that a token has: its key and value, and of int8 their scales.
  struct AllRows {
    Rows rows[4];
    int count;

    const Rows* begin() const { return rows; }
    const Rows* end() const { return rows + count; }
  };
  AllRows all_rows() const { return {{keys_, values_, key_scales_, value_scales_}, key_scales_.row > 0 ? 4 : 2}; }

  /// Sequences of rows of this memory: how many there are, their tokens so far, [count], and where these lie.
  struct Sequences {
    Index count;
    const std::int64_t* lengths;
    PageTables tables;
  };
  Sequences sequences() const { return {config_.batch_size, lengths_, memory_.tables}; }
  void write_stored(const Sequences& to, const TensorView& key, const TensorView& value, const TensorView& key_scale,
                    const TensorView& value_scale, const std::int64_t* new_lengths) const;
  void read(const Sequences& of, const TensorView& rows, const MutableTensorView& out) const;

  Rows keys_, values_, key_scales_, value_scales_;
  std::int64_t* lengths_;
  std::int64_t* integers_;

 private:
  struct Free {
    void operator()(void* block) const;
  };

  /// Memory of zeros, aligned to a line of the cache.
  std::byte* take_block(std::size_t bytes);
  template <class Copy>
  void for_each_run(const Sequences& to, const TensorView& from, const std::int64_t* new_lengths, Copy copy) const;
  void copy(const Sequences& to, const Rows& rows, const TensorView& from, const std::int64_t* new_lengths) const;
  void quantize(const Rows& to, const Rows& scales, const TensorView& from, const std::int64_t* new_lengths,
                const KernelTable& table) const;

  const KVCacheConfig config_;
  CacheMemory memory_;
  std::unique_ptr<void, Free> block_;
};

}  // namespace mha
