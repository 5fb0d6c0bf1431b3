// SPDX-License-Identifier: MIT
#include "plugin/dump/survey/memory_table.h"

namespace sluice::plugin {

void MemoryTable::add(BoRef bo, ino_t dmabuf, const BoPlace& place) {
  ino_t key = dmabuf;
  if (place.offset != 0) key = places_.try_emplace(place, dmabuf).first->second;
  if (key != dmabuf) note_other(dmabuf, key);
  all_[key].bos.push_back(bo);
}

bool MemoryTable::find_at(ino_t dmabuf, const BoPlace& place) {
  const auto at = places_.find(place);
  if (place.offset == 0 || at == places_.end()) return false;
  note_other(dmabuf, at->second);
  return true;
}

void MemoryTable::note_other(ino_t dmabuf, ino_t key) {
  others_.emplace(dmabuf, key);
  if (const auto alone = all_.extract(dmabuf); alone) all_[key].descriptors += alone.mapped().descriptors;
}

ino_t MemoryTable::key_of(ino_t dmabuf) const {
  const auto other = others_.find(dmabuf);
  return other != others_.end() ? other->second : dmabuf;
}

const MemoryTable::Memory* MemoryTable::of(ino_t dmabuf) const {
  const auto memory = all_.find(key_of(dmabuf));
  return memory != all_.end() && !memory->second.bos.empty() ? &memory->second : nullptr;
}

}  // namespace sluice::plugin
