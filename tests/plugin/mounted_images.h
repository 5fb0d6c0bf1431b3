// SPDX-License-Identifier: MIT
// A file system for one test's images, made and mounted for it. Needs root, loop devices and mkfs: what
// cannot be had here is named. Mounts are in a mount namespace of this program's own.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "lookalike/harness.h"

namespace sluice::plugin_test {

using lookalike::Program;
using lookalike::ScratchDirectory;
using lookalike::Strings;

// Runs a program of the system to its end; whether it ended well.
inline bool run_to_its_end(const Strings& command) {
  Strings arguments = {"/usr/bin/env"};  // knows the PATH
  arguments.insert(arguments.end(), command.begin(), command.end());
  return Program(arguments, {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}).wait() == 0;
}

// A file of `bytes`, of which nothing is on the disk yet.
inline void make_sparse(const std::filesystem::path& path, std::uint64_t bytes) {
  std::ofstream(path).flush();
  std::filesystem::resize_file(path, bytes);
}

// Mounts that go with the object, the last one first. Below a scratch directory.
class Mounts {
 public:
  // Once a program: what it mounts, nobody else sees. In a chroot / is no mount, and what is mounted may be
  // seen elsewhere until it goes.
  static bool unshared() {
    static const bool done = ::unshare(CLONE_NEWNS) == 0;
    if (done) (void)::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    return done;
  }

  ~Mounts() {
    for (auto place = places_.rbegin(); place != places_.rend(); ++place)
      (void)::umount2(place->c_str(), MNT_DETACH);
  }

  std::filesystem::path directory(const std::string& name) const {
    std::filesystem::create_directories(scratch_.path() / name);
    return scratch_.path() / name;
  }
  bool add(const std::string& type, const std::filesystem::path& place, const std::string& options) {
    if (::mount(type.c_str(), place.c_str(), type.c_str(), 0, options.c_str()) != 0) return false;
    places_.push_back(place);
    return true;
  }
  // A new file system in a file, through a loop device.
  bool add_loop(const Strings& make, const std::filesystem::path& image, std::uint64_t bytes,
                const std::filesystem::path& place, const std::string& options) {
    make_sparse(image, bytes);
    Strings command = make;
    command.push_back(image.string());
    if (!run_to_its_end(command) ||
        !run_to_its_end({"mount", "-o", "loop" + options, image.string(), place.string()}))
      return false;
    places_.push_back(place);
    return true;
  }

 private:
  ScratchDirectory scratch_;
  std::vector<std::filesystem::path> places_;
};

struct Kind {
  const char* name;
  Strings make;         // mkfs, for those in a file
  std::uint64_t bytes;  // of that file
};

inline void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

// The place of images is mounted before the scene takes it.
class MountedImages {
 protected:
  explicit MountedImages(const Kind& kind, const std::string& options = "") {
    if (::geteuid() != 0 || !Mounts::unshared()) {
      missing_ = "mounting needs root";
      return;
    }
    const std::string name = kind.name;
    bool mounted = false;
    if (name == "tmpfs" || name == "ramfs") {
      mounted = mounts_.add(name, place_, "size=512M");  // which ramfs does not know
    } else if (name == "overlay") {
      // Its upper directory may be on any file system but another overlay.
      const std::filesystem::path below = mounts_.directory("below");
      mounted = mounts_.add("tmpfs", below, "size=512M");
      for (const char* const part : {"lower", "upper", "work"})
        std::filesystem::create_directory(below / part);
      mounted = mounted && mounts_.add("overlay", place_,
                                       "lowerdir=" + (below / "lower").string() +
                                           ",upperdir=" + (below / "upper").string() +
                                           ",workdir=" + (below / "work").string());
    } else {
      mounted = mounts_.add_loop(kind.make, mounts_.directory("file") / "image", kind.bytes, place_, options);
    }
    if (!mounted) missing_ = name + options + " cannot be made or mounted here";
  }

  Mounts mounts_;
  std::filesystem::path place_ = mounts_.directory("images");
  std::string missing_;
};

}  // namespace sluice::plugin_test
