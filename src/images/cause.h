// SPDX-License-Identifier: MIT
// What a failure says about the image. Not allowed, missing and damaged are different answers: only damage is
// a reason to give a checkpoint up. Functions without state.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

enum class Cause : std::uint8_t {
  Damaged,      // it was read, and is wrong
  Missing,      // it is not there
  NotAllowed,   // the caller may not read it, or lacks the key
  Unsupported,  // it is intact, but only the plugin that made it restores this form
  Unreadable,   // the disk, the mount or the system failed; the image may be intact
};

// For an Error::err. Errors about contents (EBADMSG, EINVAL, EFBIG, ...) mean damage; anything unknown is
// Unreadable.
Cause cause_of(int err);

// "damaged", "missing", "not-allowed", "unsupported", "unreadable": as in JSON.
const char* word_of(Cause cause);

// The remedy: a clause without a full stop; empty if the error's message includes it.
std::string remedy_of(int err);

}  // namespace sluice
