// Which pages of a pool are in use, and by how many sequences.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mha/tensor_view.hpp"

namespace mha {

/// Counts over memory of the owner: for each page how many tables name it. A page that none names is free.
class PagePool {
 public:
  PagePool(std::int32_t* uses, Index pages) : uses_(uses), pages_(pages) { clear(); }

  Index pages() const { return pages_; }
  Index free_pages() const { return free_; }
  std::int32_t uses(std::int32_t page) const { return uses_[page]; }

  /// The page after `last` if it is free, so that a sequence that grows alone has neighbouring pages, else the lowest
  /// free page. Some page must be free.
  std::int32_t take(std::int32_t last) {
    std::int32_t page = last + 1;
    if (last < 0 || page >= pages_ || uses_[page] != 0) {
      while (uses_[lowest_] != 0) ++lowest_;
      page = lowest_;
    }
    uses_[page] = 1;
    --free_;
    return page;
  }
  void share(std::int32_t page) { ++uses_[page]; }
  /// The same for a page that may be free.
  void take_or_share(std::int32_t page) { free_ -= uses_[page]++ == 0; }
  void release(std::int32_t page) {
    if (--uses_[page] > 0) return;
    ++free_;
    lowest_ = std::min(lowest_, page);
  }
  /// All are free, whatever was.
  void clear() {
    std::fill_n(uses_, pages_, 0);
    free_ = pages_;
    lowest_ = 0;
  }

 private:
  std::int32_t* const uses_;
  const Index pages_;
  Index free_ = 0;
  std::int32_t lowest_ = 0;  // pages below it are in use
};

}  // namespace mha
