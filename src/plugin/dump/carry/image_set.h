// SPDX-License-Identifier: MIT
// The names of one dump's images: what is removed if the dump fails. Metadata goes first, so that an
// incomplete dump never looks complete. A name is added before its file exists.
//
// Main thread.
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "plugin/host/image_store.h"
#include "settings/config.h"

namespace sluice::plugin {

class ImageSet {
 public:
  // Borrowed.
  explicit ImageSet(ImageStore& store) : store_(store) {}

  void add_metadata(std::string name) { add(std::move(name), metadata_); }
  void add(std::string name) { add(std::move(name), others_); }

  // Called once, before the first image is written. So files of an earlier dump never mix with this one, such
  // as old pages files beside new metadata. Errors: those of direct I/O if the file system lacks it; of
  // listing, removing and renaming.
  Result<void> clear_directory(const settings::Config& config);
  bool directory_is_clear() const { return directory_is_clear_; }
  // A pages file of the earlier dump whose name ends in `ending`, to be overwritten; each only once.
  std::optional<std::string> take_old_pages(const std::string& ending);

  // The end of the dump: removes old files that were not overwritten.
  void remove_old_pages();
  // The same, and removes the images of this dump.
  void roll_back();
  // Removes this dump's images only. Callable on top of any call of this class: allocates nothing, waits for
  // nothing.
  void roll_back_from_signal() const noexcept;

 private:
  // Names never move, and join their chain, latest first, once they are complete.
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
  void remove_or_say(const std::string& name);

  ImageStore& store_;
  std::deque<Name> names_;
  Chain metadata_{nullptr}, others_{nullptr};
  std::vector<OldPages> old_pages_;
  bool directory_is_clear_ = false;
};

}  // namespace sluice::plugin
