// SPDX-License-Identifier: MIT
// What the tests of the commands that look at images share: images that the plugin made, once for all of
// them, and ways to damage copies of these.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "images/sums.h"
#include "kfd/uapi.h"
#include "made_images.h"
#include "pipeline/checksum/checksum.h"

namespace sluice::cli_test {

// "plain": one process with a KFD, dumped and restored once. "shared": its memory is in render files, too.
class ImagesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    images_ = new MadeImages;
    ASSERT_EQ(images_->dump("plain", {}), "");
    ASSERT_EQ(images_->restore("plain"), "");
    ASSERT_EQ(images_->dump("shared", {"--svm-context", "--share", "kfd", "--gem-handles", "1,3"}), "");
  }
  static void TearDownTestSuite() { delete images_; }

  // Each test has a copy of its own to damage.
  std::string damaged_copy() const { return images_->copy("plain", test_name()).string(); }
  static std::string plain() { return images_->directory("plain").string(); }
  static std::string shared() { return images_->directory("shared").string(); }

  static std::vector<std::string> names(const std::string& directory, const std::string& prefix) {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (const std::string name = entry.path().filename().string(); name.starts_with(prefix))
        found.insert(name);
    }
    return {found.begin(), found.end()};
  }
  static std::uint64_t total_size(const std::string& directory, const std::string& prefix) {
    std::uint64_t sum = 0;
    for (const std::string& name : names(directory, prefix))
      sum += std::filesystem::file_size(std::filesystem::path(directory) / name);
    return sum;
  }

  // Changes each image of this kind, as a disk or another plugin might have made it. `from`, `to`: its bytes
  // to a value and back.
  template <class From, class Change, class To>
  static void change_image(const std::string& directory, std::string_view prefix, From from, Change change,
                           To to) {
    for (const std::string& name : names(directory, std::string(prefix))) {
      const UniqueFd dir(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      auto image = from(read_image(dir.get(), name).value(), name, ImageKeys()).value();
      change(image);
      ASSERT_TRUE(write_image(dir.get(), name, to(image), false).ok());
    }
  }
  static void change_kfd_image(const std::string& directory, const std::function<void(KfdImage&)>& change) {
    change_image(directory, kKfdPrefix, unpack_kfd_image, change,
                 [](const KfdImage& image) { return pack_kfd_image(image, {}); });
  }
  static void change_render_image(const std::string& directory,
                                  const std::function<void(RenderImage&)>& change) {
    change_image(directory, kRenderPrefix, unpack_render_image, change,
                 [](const RenderImage& image) { return pack_render_image(image, {}); });
  }
  // The first BO in VRAM.
  static BoEntry& vram_bo(KfdImage& image) {
    return *std::find_if(image.bos.begin(), image.bos.end(),
                         [](const BoEntry& bo) { return (bo.alloc_flags & kfd::kAllocVram) != 0; });
  }
  static void remove_files(const std::string& directory, const std::string& prefix) {
    for (const std::string& name : names(directory, prefix)) std::filesystem::remove(directory + "/" + name);
  }
  // As if the dump had written none.
  static void remove_sums(const std::string& directory) {
    remove_files(directory, "amdgpu-sums-");
    change_kfd_image(directory, [](KfdImage& image) { image.has_sums = false; });
    change_render_image(directory, [](RenderImage& image) { image.has_sums = false; });
  }

  // They say that all of it is zero.
  static void make_sums_of_zeros(const std::string& directory) {
    change_image(
        directory, "amdgpu-sums-", unpack_sidecar,
        [](Sidecar& sums) {
          for (SumTable& table : sums.tables)
            std::fill(table.sums.begin(), table.sums.end(), table.method.of_zeros(kSumUnitBytes));
        },
        [](const Sidecar& sums) { return pack_sidecar(sums, {}); });
  }

  static inline MadeImages* images_ = nullptr;
};

}  // namespace sluice::cli_test
