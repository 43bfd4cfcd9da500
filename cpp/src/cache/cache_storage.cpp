#include "cache/cache_storage.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "mha/errors.hpp"
#include "platform/huge_pages.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t whole_lines(Index bytes) {
  return (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
}

/// Copies `count` rows of `columns` elements of `size` bytes to dense rows. Rows are `row` bytes apart, and neighbours
/// in a row `step` elements.
void copy_rows(std::byte* to, const std::byte* from, Index count, Index row, Index columns, Index step, Index size) {
  const Index bytes = columns * size;
  if (step == 1 && row == bytes) {
    if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count * bytes));
    return;
  }
  for (Index t = 0; t < count; ++t, to += bytes, from += row) {
    if (step == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
      continue;
    }
    for (Index c = 0; c < columns; ++c)
      std::memcpy(to + c * size, from + c * step * size, static_cast<std::size_t>(size));
  }
}

}  // namespace

void CacheStorage::Free::operator()(void* block) const { std::free(block); }

CacheStorage::CacheStorage(const KVCacheConfig& config, Index rows, bool is_shared, Index integers) : config_(config) {
  const Index size = size_of(config.dtype), pools = is_shared ? 1 : config.batch_size;
  // As if nothing were 0: the products below leave out some of the factors.
  const double tokens = std::max(double(pools), 1.0) * std::max(double(rows), 1.0);
  const Index scale = config.dtype == DType::int8 ? Index{sizeof(float)} : 0;  // bytes for each row
  const double columns = double(config.head_dim) + double(config.value_head_dim);
  const double bytes_of_token = double(config.num_kv_heads) * (columns * double(size) + 2 * double(scale));
  const double numbers = double(config.batch_size) + double(integers);
  allocatable(tokens * bytes_of_token + numbers * sizeof(std::int64_t));
  const auto rows_of = [&](Index bytes) {
    return Rows{nullptr, bytes, rows * bytes, is_shared ? 0 : rows * bytes * config.num_kv_heads};
  };
  keys_ = rows_of(config.head_dim * size);
  values_ = rows_of(config.value_head_dim * size);
  key_scales_ = value_scales_ = rows_of(scale);
  std::size_t total = 0;
  const auto take = [&](Index bytes) { return std::exchange(total, total + whole_lines(bytes)); };
  std::size_t at[4] = {}, *next = at;
  for (const Rows* of : {&keys_, &values_, &key_scales_, &value_scales_})
    *next++ = take(pools * config.num_kv_heads * of->head);
  const std::size_t lengths_at = take(config.batch_size * Index{sizeof(std::int64_t)});
  const std::size_t integers_at = take(integers * Index{sizeof(std::int64_t)});
  std::byte* const base = take_block(total);
  next = at;
  for (Rows* of : {&keys_, &values_, &key_scales_, &value_scales_}) of->data = base + *next++;
  // Shorter rows of heads would be taken as a whole with the first token of each.
  if (static_cast<std::size_t>(keys_.head) >= kHugePage) ask_for_huge_pages(base, total);
  lengths_ = reinterpret_cast<std::int64_t*>(base + lengths_at);
  integers_ = reinterpret_cast<std::int64_t*>(base + integers_at);
  const auto view = [&](const Rows& of, DType dtype) {
    const Index element = size_of(dtype), row = of.row / element;
    return MutableTensorView{of.data,
                             dtype,
                             {config.batch_size, config.num_kv_heads, rows, row},
                             {of.sequence / element, of.head / element, row, 1}};
  };
  memory_.keys = view(keys_, config.dtype);
  memory_.values = view(values_, config.dtype);
  if (scale == 0) return;
  memory_.key_scales = view(key_scales_, DType::f32);
  memory_.value_scales = view(value_scales_, DType::f32);
}

CacheStorage::CacheStorage(const KVCacheConfig& config, const MutableTensorView& keys, const MutableTensorView& values,
                           Index integers)
    : config_(config), memory_{keys, values, {}, {}, {}} {
  const Index size = size_of(config.dtype);
  const auto rows_of = [&](const MutableTensorView& view) {
    return Rows{static_cast<std::byte*>(view.data), view.extents[3] * size, view.strides[1] * size,
                view.strides[0] * size};
  };
  keys_ = rows_of(keys);
  values_ = rows_of(values);
  key_scales_ = value_scales_ = {};
  const Index numbers = config.batch_size + integers;
  lengths_ = reinterpret_cast<std::int64_t*>(take_block(static_cast<std::size_t>(numbers) * sizeof(std::int64_t)));
  integers_ = lengths_ + config.batch_size;
}

std::byte* CacheStorage::take_block(std::size_t bytes) {
  // calloc gives pages that the operating system clears when they are first touched, so a cache of which little is
  // used takes little memory. It does not align them to cache lines; std::align() does.
  std::size_t space = bytes + kAlignment;
  block_.reset(std::calloc(space, 1));
  if (!block_) throw AllocationError(space);
  void* aligned = block_.get();
  return static_cast<std::byte*>(std::align(kAlignment, bytes, aligned, space));
}

void CacheStorage::advance(Index count, const std::int64_t* new_lengths) {
  for (Index b = 0; b < config_.batch_size; ++b) lengths_[b] += new_lengths ? new_lengths[b] : count;
}

/// Calls copy(sequence, head, row, address, run) for each run of tokens of `from` whose rows follow one another: the
/// row of the first one, where it lies in `from`, and how many there are.
template <class Copy>
void CacheStorage::for_each_run(const Sequences& to, const TensorView& from, const std::int64_t* new_lengths,
                                Copy copy) const {
  for (Index b = 0; b < to.count; ++b) {
    const Index count = new_lengths ? new_lengths[b] : from.extents[2];
    for (Index t = 0, run; t < count; t += run) {
      run = to.tables.run_of(b, to.lengths[b] + t, count - t);
      const Index row = to.tables.row_of(b, to.lengths[b] + t);
      for (Index h = 0; h < config_.num_kv_heads; ++h)
        copy(b, h, row,
             static_cast<const std::byte*>(from.data) +
                 (b * from.strides[0] + h * from.strides[1] + t * from.strides[2]) * size_of(from.dtype),
             run);
    }
  }
}

void CacheStorage::copy(const Sequences& to, const Rows& rows, const TensorView& from,
                        const std::int64_t* new_lengths) const {
  for_each_run(to, from, new_lengths, [&](Index b, Index h, Index row, const std::byte* first, Index run) {
    copy_rows(rows.at(b, h, row), first, run, byte_stride(from, 2), from.extents[3], from.strides[3],
              size_of(from.dtype));
  });
}

void CacheStorage::quantize(const Rows& to, const Rows& scales, const TensorView& from, const std::int64_t* new_lengths,
                            const KernelTable& table) const {
  for_each_run(sequences(), from, new_lengths, [&](Index b, Index h, Index row, const std::byte* first, Index run) {
    table.quantize_heads({run, from.extents[3], reinterpret_cast<const float*>(first), from.strides[2], from.strides[3],
                          reinterpret_cast<std::int8_t*>(to.at(b, h, row)), to.row,
                          reinterpret_cast<float*>(scales.at(b, h, row))});
  });
}

void CacheStorage::write(const TensorView& key, const TensorView& value, const std::int64_t* new_lengths,
                         const KernelTable& table) const {
  if (config_.dtype != DType::int8) return write_stored(key, value, {}, {}, new_lengths);
  quantize(keys_, key_scales_, key, new_lengths, table);
  quantize(values_, value_scales_, value, new_lengths, table);
}

void CacheStorage::write_stored(const Sequences& to, const TensorView& key, const TensorView& value,
                                const TensorView& key_scale, const TensorView& value_scale,
                                const std::int64_t* new_lengths) const {
  copy(to, keys_, key, new_lengths);
  copy(to, values_, value, new_lengths);
  if (key_scale) copy(to, key_scales_, key_scale, new_lengths);
  if (value_scale) copy(to, value_scales_, value_scale, new_lengths);
}

void CacheStorage::read(const Sequences& of, const TensorView& rows, const MutableTensorView& out) const {
  const Index size = size_of(rows.dtype), columns = rows.extents[3];
  const Index step = out.strides[3] * size, piece = step == size ? columns * size : size;  // bytes of one copy
  for (Index b = 0; b < of.count; ++b)
    for (Index t = 0; t < out.extents[2]; ++t) {
      const bool is_token = t < of.lengths[b];
      const Index row = is_token ? of.tables.row_of(b, t) : 0;
      for (Index h = 0; h < config_.num_kv_heads; ++h) {
        const std::byte* from = static_cast<const std::byte*>(rows.data) +
                                (b * rows.strides[0] + h * rows.strides[1] + row * rows.strides[2]) * size;
        std::byte* to =
            static_cast<std::byte*>(out.data) + (b * out.strides[0] + h * out.strides[1] + t * out.strides[2]) * size;
        for (Index at = 0; at < columns * size; at += piece, from += piece, to += step)
          if (is_token)
            std::memcpy(to, from, static_cast<std::size_t>(piece));
          else
            std::memset(to, 0, static_cast<std::size_t>(piece));
      }
    }
}

}  // namespace mha
