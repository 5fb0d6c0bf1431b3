// SPDX-License-Identifier: MIT
#include "images/files/cause.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/result.h"

namespace sluice {
namespace {

// Whether this process may read every file of its file systems, like root.
bool may_read_everything() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  constexpr std::uint32_t kNeeded = 1U << CAP_DAC_READ_SEARCH;
  return ::syscall(SYS_capget, &header, sets.data()) == 0 && (sets[0].effective & kNeeded) != 0;
}

}  // namespace

Cause cause_of(int err) {
  switch (err) {
    case EBADMSG:
    case EINVAL:
    case EFBIG:
    case E2BIG:
    case EOVERFLOW:
    case ENODATA:
    case EKEYREJECTED:
      return Cause::Damaged;
    case ENOENT:
    case ENOTDIR:
      return Cause::Missing;
    case EACCES:
    case EPERM:
    case ENOKEY:
      return Cause::NotAllowed;
    case kUnsigned:
      return Cause::Unsigned;
    case ENOSYS:
      return Cause::Unsupported;
    default:
      return Cause::Unreadable;
  }
}

const char* word_of(Cause cause) {
  switch (cause) {
    case Cause::Damaged:
      return "damaged";
    case Cause::Missing:
      return "missing";
    case Cause::NotAllowed:
      return "not-allowed";
    case Cause::Unsigned:
      return "unsigned";
    case Cause::Unsupported:
      return "unsupported";
    case Cause::Unreadable:
      break;
  }
  return "unreadable";
}

std::string remedy_in(std::string_view message) {
  const std::string_view words = message.substr(0, id_begin(message));
  const std::size_t begin = words.rfind("; ");
  return has_id(message) && begin != words.npos ? std::string(words.substr(begin + 2)) : "";
}

std::string remedy_of(int err) {
  switch (err) {
    case ENOKEY:
    case EKEYREJECTED:
    case kUnsigned:
      return "";
    case EACCES:
    case EPERM:
      // For root a refusal comes from a server, a FUSE file system or a security module.
      return !may_read_everything()
                 ? "images are readable by their owner only: try again as root"
                 : "root may not read this here: try as its owner, or on the machine that has the "
                   "disk";
    case EMFILE:
      return "this process cannot open more files: raise its limit (ulimit -n), and try again";
    case ENFILE:
      return "the system cannot open more files: raise fs.file-max, and try again";
    case ENOMEM:
      return "memory is short: try again where there is more, or with a higher limit";
    case ELOOP:
      return "a symbolic link in this path leads back to itself";
    case ESTALE:
    case ENOTCONN:
    case ETIMEDOUT:
    case EHOSTDOWN:
      return "the mount does not answer, and the images may be whole: mount it again, and try again";
    default:
      break;
  }
  switch (cause_of(err)) {
    case Cause::Damaged:
      return "use another checkpoint";
    case Cause::Missing:
      return "copy what is missing to its place, or use another checkpoint";
    case Cause::Unsupported:
      return "the images are whole: restore them with the plugin that made them, or dump the processes again "
             "with this one";
    default:
      break;
  }
  return "the disk or the mount failed, and the images may be whole: see the kernel's log (dmesg), and try "
         "again";
}

}  // namespace sluice
