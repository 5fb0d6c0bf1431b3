// SPDX-License-Identifier: MIT
// What a restore knows before there are tasks: made in init() by CRIU's main process, inherited by every task
// forked from it.
//
// Each task has its copy, except for shared memory: `lifeline`, `shared` and part of `tree_match`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/result.h"
#include "base/unique_fd.h"
#include "images/metadata.h"
#include "plugin/host/image_store.h"
#include "plugin/host/thread_numbers.h"
#include "plugin/restore/gpus/tree_match.h"
#include "plugin/restore/lifeline.h"
#include "plugin/restore/restore_chain.h"
#include "plugin/restore/restore_survey.h"
#include "plugin/restore/shared_table.h"
#include "settings/config.h"

namespace sluice::plugin {

// The image of any open file of ours.
using DeviceImage = std::variant<kfd::KfdImage, RenderImage, DmaBufImage>;

// Does not move: the content server uses the lifeline's memory, and every GPU match the tree's.
struct RestorePlan {
  // Reads the configuration and the images. `store` is borrowed. If no image needs a GPU plugin, or the
  // machine has no KFD, only the first three members are meaningful. A setting that maps unknown GPUs, and
  // another driver's private data, fail here, before anything is created. Errors: those of
  // RestoreSurvey::read(), RestoreChain::open() and check_record_bytes(); ENOMEM.
  static Result<std::unique_ptr<RestorePlan>> make(ImageStore& store);

  // The image with CRIU's id `id`. Must be of the same dump as all that make() has seen; its files may have
  // been removed since. Errors: those of ImageStore::load() and unpacking; RestoreSurvey::add()'s.
  Result<kfd::KfdImage> load_kfd_image(int id);
  Result<RenderImage> load_render_image(int id);
  // The image of any kind; nothing if the file has none of ours. ENODEV: it has one, and there is no KFD.
  Result<std::optional<DeviceImage>> load_device_image(int id);

  // Memory that several files share, by its number: published by the task that makes it (0: not shared),
  // awaited by one that imports it. EBADMSG: no image makes it; else as SharedTable's.
  Result<void> publish(std::uint32_t number, int dmabuf);
  Result<UniqueFd> take_shared(std::uint32_t number);

  explicit RestorePlan(ImageStore& where) : store(where) {}

  ImageStore& store;
  bool needed = false;   // the images may have files of ours
  dev_t kfd_device = 0;  // 0: no KFD on this machine
  settings::Config config;
  RestoreSurvey survey;
  std::unique_ptr<Lifeline> lifeline;
  std::unique_ptr<ThreadNumbers> thread_numbers;
  std::unique_ptr<SharedTable> shared;  // if files share memory
  std::unique_ptr<TreeMatch> tree_match;
  std::unique_ptr<const RestoreChain> chain;  // if the checkpoint has a parent
  std::uint32_t record_bytes = 0;             // of a BO in the driver's private data; 0: unknown
  ino_t main_pid_namespace = 0;               // 0: unknown

 private:
  Result<void> prepare_match();
  Result<std::vector<std::uint8_t>> load(std::string& name);
  Result<void> check_records();
  template <class Image>
  Result<Image> checked(Result<Image> image, const std::string& name);
  template <class Image, class Unpack>
  Result<std::optional<Image>> load_if_there(std::string name, Unpack unpack);
  Error nobody_has_shared() const;
};

// Identifies a pid namespace by its file (/proc/PID/ns/pid) below `directory`; 0 if there is none.
ino_t pid_namespace(int directory, const char* file);

}  // namespace sluice::plugin
