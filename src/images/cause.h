// SPDX-License-Identifier: MIT
// What a failure says of the image that it happened to. Not allowed, not there and damaged are three answers:
// only the last one is a reason to give a checkpoint up. Functions without state.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

enum class Cause : std::uint8_t {
  Damaged,      // it was read, and is not what it should be
  Missing,      // it is not there
  NotAllowed,   // who asks may not read it, or has not the key
  Unsupported,  // it is whole, and of a form that only the plugin that made it restores
  Unreadable,   // the disk, the mount or the system refuses, whatever the image is
};

// Of an Error::err. What the readers of images say of contents (EBADMSG, EINVAL, EFBIG, ...) is damage; what
// is none of the others is Unreadable.
Cause cause_of(int err);

// "damaged", "missing", "not-allowed", "unsupported", "unreadable": as JSON has it.
const char* word_of(Cause cause);

// What its reader can do: a clause without a full stop; empty where the message of such an error says so
// itself.
std::string remedy_of(int err);

}  // namespace sluice
