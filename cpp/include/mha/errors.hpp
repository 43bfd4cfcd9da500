// The exceptions of the library. All but the last are thrown before any work is done: outputs are untouched.
//   std::invalid_argument   a shape or a value breaks a rule           (Python: ValueError)
//   mha::DTypeError         an element type breaks a rule              (Python: TypeError)
//   mha::AllocationError    memory ran out; what() says how much       (Python: MemoryError)
//   mha::Cancelled          a CancellationScope ended the call         (Python: concurrent.futures.CancelledError, or
//                                                                      the exception of a signal handler)
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

#include "mha/export.h"

namespace mha {

class MHA_API DTypeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class MHA_API AllocationError : public std::bad_alloc {
 public:
  explicit AllocationError(std::size_t bytes) noexcept {
    std::snprintf(message_, sizeof message_, "mha_native: could not allocate %zu bytes", bytes);
  }
  const char* what() const noexcept override { return message_; }

 private:
  char message_[64];
};

/// The call was cancelled: outputs are invalid, caches are unchanged. See cancellation.hpp.
class MHA_API Cancelled : public std::exception {
 public:
  const char* what() const noexcept override { return "mha_native: the call was cancelled"; }
};

}  // namespace mha
