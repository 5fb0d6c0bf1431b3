// SPDX-License-Identifier: MIT
// What a failure says about the image. Not allowed, missing and damaged are different answers: only damage is
// a reason to give a checkpoint up. Functions without state.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class Cause : std::uint8_t {
  Damaged,      // it was read, and is wrong
  Missing,      // it is not there
  NotAllowed,   // the caller may not read it, or lacks the key
  Unsigned,     // a key is set, and it was made without one: nothing shows whether it is whole
  Unsupported,  // it is intact, but only the plugin that made it restores this form
  Unreadable,   // the disk, the mount or the system failed; the image may be intact
};

// Error::err of what was made without the key that is set.
inline constexpr int kUnsigned = EKEYREVOKED;

// For an Error::err. Errors about contents (EBADMSG, EINVAL, EFBIG, ...) mean damage; anything unknown is
// Unreadable.
Cause cause_of(int err);

// "damaged", "missing", "not-allowed", "unsigned", "unsupported", "unreadable": as in JSON.
const char* word_of(Cause cause);

// The remedy: a clause without a full stop; empty if the error's message includes it.
std::string remedy_of(int err);
// The remedy in a message with an id: what follows its last semicolon. Empty if it has none.
std::string remedy_in(std::string_view message);

}  // namespace sluice
