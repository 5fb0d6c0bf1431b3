// SPDX-License-Identifier: MIT
// The images of open files, for the task that restores them. Those that were found before there were tasks
// are as they were then. Others could not be read, or listed, and are tried again. A task's only thread.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "base/result.h"
#include "images/kfd_image.h"
#include "images/metadata.h"
#include "images/undeclared_sharing.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/image_store.h"
#include "plugin/restore/plan/restore_plan.h"

namespace sluice::plugin {

// The image of any open file of ours.
using DeviceImage = std::variant<KfdImage, RenderImage, DmaBufImage>;

class TaskImages {
 public:
  // Both are borrowed.
  TaskImages(const ImageStore& store, const RestorePlan& plan);

  // The image of the file with CRIU's id `id`; nothing if it has none of ours. Errors: those of
  // ImageStore::load() and of unpacking. For an image that was not found before: EBADMSG if it is of another
  // dump, or another file's. EKEYREJECTED, with a key: then each task could be given another dump's images,
  // and the plan might not hold.
  Result<std::optional<DeviceImage>> any(int id);

 private:
  template <class Image>
  struct Kind;
  template <class Image>
  Result<std::optional<Image>> find(int id);
  Result<void> refuse_with_key(const std::string& name) const;

  const ImageStore& store_;
  const RestorePlan& plan_;
  // The plan's, and then of images that are new to it.
  SameDump same_dump_;
  UndeclaredSharing undeclared_sharing_;
};

// On a machine without /dev/kfd: nothing, or ENODEV if the open file `id` has an image of ours.
Result<Answer> restore_without_kfd(const ImageStore& store, int id);

}  // namespace sluice::plugin
