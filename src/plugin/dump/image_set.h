// SPDX-License-Identifier: MIT
// The names of one dump's images: what has to go where the dump fails. Metadata goes first, so that at no
// moment an incomplete dump looks complete. Names are added before there are such files.
//
// A streamer can neither list nor remove files: with streams names are noted and nothing else is done. Main
// thread.
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "settings/config.h"

namespace sluice::plugin {

class ImageSet {
 public:
  void add_metadata(std::string name) { add(std::move(name), metadata_); }
  void add(std::string name) { add(std::move(name), others_); }

  // Before the first image is written, once: what an earlier dump left in the directory never mixes with this
  // one, a pages file of then beside metadata of now. Errors: those of direct I/O that the directory's file
  // system does not have; of listing, removing and renaming.
  Result<void> clear_directory(const Config& config);
  bool directory_is_clear() const { return directory_is_clear_; }
  // A pages file of the earlier dump whose name ends so, to be written over; each once.
  std::optional<std::string> take_old_pages(const std::string& ending);

  // The end of the dump: removes what nothing was written over.
  void commit();
  // The same, and removes the images of this dump.
  void roll_back();
  // Removes the images of this dump, and of these alone, on top of any call of this class: allocates nothing,
  // waits for nothing.
  void roll_back_from_signal() const noexcept;

 private:
  // Names never move, and are in their chain, latest first, when they are complete.
  struct Name {
    std::string name;
    const Name* next = nullptr;
  };
  using Chain = std::atomic<const Name*>;
  struct OldPages {
    std::string name;
    bool taken = false;
  };
  void add(std::string name, Chain& chain);

  std::deque<Name> names_;
  Chain metadata_{nullptr}, others_{nullptr};
  std::vector<OldPages> old_pages_;
  bool directory_is_clear_ = false;
};

}  // namespace sluice::plugin
