// SPDX-License-Identifier: MIT
// Turns exceptions into errors where something must be undone, or reported to another thread.
#pragma once

#include <cerrno>
#include <new>

#include "base/result.h"

namespace sluice {

// What `call` returns, or the exception it threw as an Error. Its text needs no memory: memory may be what
// ran out.
template <class Call>
Result<void> caught(Call call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Error{ENOMEM, "out of memory"};
  } catch (...) {
    return Error{EIO, "exception"};
  }
}

}  // namespace sluice
