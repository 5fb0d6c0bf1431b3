// SPDX-License-Identifier: MIT
#include "plugin/dump/image_set.h"

#include <unistd.h>

#include <algorithm>

#include "images/files.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

namespace {

void remove_or_say(const std::string& name) {
  if (auto removed = remove_image(image_dir_fd(), name); !removed)
    log_line(Level::Warning, removed.error().what);
}

}  // namespace

void ImageSet::add(std::string name, Chain& chain) {
  names_.push_back({std::move(name), chain});
  chain = &names_.back();
}

Result<void> ImageSet::clear_directory(const Config& config) {
  directory_is_clear_ = true;
  if (config.io_mode == IoMode::Direct)
    SLUICE_TRY(about(Topic::Images, check_direct_io(image_dir_fd(), config.chunk_bytes)));
  SLUICE_TRY_ASSIGN(std::vector<std::string> names,
                    about(Topic::Images, remove_plugin_images(image_dir_fd(), config.reuse_files)));
  // Under names that no file of this dump gets: one that is finished must not be taken for an old one.
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::string neutral = old_pages_image(i, names[i]);
    SLUICE_TRY(about(Topic::Images, rename_image(image_dir_fd(), names[i], neutral)));
    old_pages_.push_back({std::move(neutral)});
  }
  return {};
}

std::optional<std::string> ImageSet::take_old_pages(const std::string& ending) {
  const auto old = std::find_if(old_pages_.begin(), old_pages_.end(), [&](const OldPages& one) {
    return !one.taken && one.name.ends_with(ending);
  });
  if (old == old_pages_.end()) return std::nullopt;
  old->taken = true;
  return old->name;
}

void ImageSet::commit() {
  for (const OldPages& old : old_pages_) remove_or_say(old.name);
}

void ImageSet::roll_back() {
  commit();
  if (streaming()) return;
  for (const Chain* chain : {&metadata_, &others_}) {
    for (const Name* name = *chain; name != nullptr; name = name->next) remove_or_say(name->name);
  }
  if (!names_.empty()) (void)sync_directory(image_dir_fd());
}

void ImageSet::roll_back_from_signal() const noexcept {
  if (streaming()) return;
  for (const Chain* chain : {&metadata_, &others_}) {
    for (const Name* name = *chain; name != nullptr; name = name->next)
      (void)::unlinkat(image_dir_fd(), name->name.c_str(), 0);
  }
}

}  // namespace sluice::plugin
