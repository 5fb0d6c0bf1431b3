// SPDX-License-Identifier: MIT
#include "plugin/host/image_store.h"

#include "plugin/host/criu_host.h"

namespace sluice::plugin {

std::unique_ptr<ImageStore> ImageStore::of_host() {
  return streaming() ? of_stream() : of_directory(image_dir_fd);
}

}  // namespace sluice::plugin
