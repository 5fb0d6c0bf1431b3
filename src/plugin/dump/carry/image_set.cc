// SPDX-License-Identifier: MIT
#include "plugin/dump/carry/image_set.h"

#include <algorithm>

#include "images/files/files.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

void ImageSet::add(std::string name, Chain& chain) {
  names_.push_back({std::move(name), chain});
  chain = &names_.back();
}

void ImageSet::remove_or_say(const std::string& name) {
  // unreached: does not fail
  if (auto removed = store_.remove(name); !removed) log_line(Level::Warning, removed.error().what);
}

Result<void> ImageSet::clear_directory(const settings::Config& config) {
  directory_is_clear_ = true;
  SLUICE_TRY_ASSIGN(const std::vector<std::string> names,
                    store_.clear(config.io_mode, config.chunk_bytes, config.reuse_files));
  // Under names that this dump does not use, because a finished file must not be mistaken for an old one.
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::string neutral = old_pages_image(i, names[i]);
    SLUICE_TRY(store_.rename(names[i], neutral));
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

void ImageSet::remove_old_pages() {
  for (const OldPages& old : old_pages_) remove_or_say(old.name);
}

void ImageSet::roll_back() {
  remove_old_pages();
  for (const Chain* chain : {&metadata_, &others_}) {
    for (const Name* name = *chain; name != nullptr; name = name->next) remove_or_say(name->name);
  }
  if (!names_.empty()) (void)store_.sync();
}

void ImageSet::roll_back_from_signal() const noexcept {
  for (const Chain* chain : {&metadata_, &others_}) {
    for (const Name* name = *chain; name != nullptr; name = name->next) store_.remove_from_signal(name->name);
  }
}

}  // namespace sluice::plugin
