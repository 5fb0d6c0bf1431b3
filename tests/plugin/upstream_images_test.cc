// SPDX-License-Identifier: MIT
// Images in the form of every released plugin of upstream's, and of criu-dev's, in all hosts; and what of our
// own images upstream's plugin goes by.
#include "support/upstream_images.h"

#include <fcntl.h>

#include <algorithm>
#include <functional>

#include "base/unique_fd.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "kfd/uapi.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

using test::UpstreamForm;

class UpstreamImagesTest : public PluginTest {
 protected:
  // Dumps a process, turns its images into upstream's, and restores them.
  void come_back(UpstreamForm form, unsigned gpus, const Strings& options = {}) {
    scene_.move_to(small_machine(gpus));
    ASSERT_NO_FATAL_FAILURE(start(options));
    ASSERT_NO_FATAL_FAILURE(dump());
    const Result<void> turned = test::make_upstreams(scene_.images(), form);
    ASSERT_TRUE(turned.ok()) << turned.error().what;
    ASSERT_EQ(images("amdgpu-kfd-").size(), 1U);
    ASSERT_EQ(images("amdgpu-renderD-").size(), gpus);
    ASSERT_EQ(images("amdgpu-sums-"), std::set<std::string>());
    ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
    EXPECT_EQ(times_in(scene_.log(), "has no checksums"), 1U);
    expect_whole();
    EXPECT_EQ(heard("quit"), "ok quit");
  }

  static std::size_t times_in(const std::string& log, const std::string& words) {
    std::size_t times = 0;
    for (std::size_t at = log.find(words); at != std::string::npos; at = log.find(words, at + 1)) ++times;
    return times;
  }

  // Without what upstream's plugin does not save, and what is new in each process.
  static std::vector<RenderBo> bos_in(const std::filesystem::path& images, const std::string& name) {
    const UniqueFd directory(::open(images.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    RenderImage image = unpack_render_image(read_image(directory.get(), name).value(), name, {}).value();
    for (RenderBo& bo : image.bos) {
      bo.gem.metadata = {};
      bo.mmap_offset = 0;
    }
    return image.bos;
  }

  KfdImage kfd_image() const {
    const UniqueFd directory(::open(scene_.images().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const std::string name = *images("amdgpu-kfd-").begin();
    return unpack_kfd_image(read_image(directory.get(), name).value(), name, {}).value();
  }
};

TEST_P(UpstreamImagesTest, ThoseOfAReleasedPluginComeBackOnOneGpu) {
  come_back(UpstreamForm::Released, 1);
}

TEST_P(UpstreamImagesTest, ThoseOfAReleasedPluginComeBackOnSeveralGpus) {
  come_back(UpstreamForm::Released, 3);
}

TEST_P(UpstreamImagesTest, ThoseOfCriuDevComeBackOnOneGpu) {
  come_back(UpstreamForm::Dev, 1);
}

// Each BO has a handle, and no other file has any of them.
TEST_P(UpstreamImagesTest, ThoseOfCriuDevComeBackOnSeveralGpus) {
  come_back(UpstreamForm::Dev, 3);
}

// Handles are numbers of the process' file, those of the KFD's BOs of criu's own. Where both have one, of
// other memory, criu-dev calls the BO imported; the first is in VRAM, so it is not. Upstream's plugin saves
// no metadata: the process misses that, and nothing else.
TEST_P(UpstreamImagesTest, BosOfRenderNodesInThoseOfCriuDevComeBack) {
  ASSERT_NO_FATAL_FAILURE(start({"--svm-context", "--gem-handles", "1,70,4096"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  const ScratchDirectory before;
  std::filesystem::copy(scene_.images(), before.path(), std::filesystem::copy_options::recursive);
  ASSERT_TRUE(test::make_upstreams(scene_.images(), UpstreamForm::Dev).ok());
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_EQ(times_in(scene_.log(), "has no checksums"), 1U);
  EXPECT_EQ(heard("check"), "bad GEM handle 1 has other metadata than it had");
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::set<std::string> pages = images("amdgpu-drm-pages-");
  EXPECT_EQ(pages, images_in(before.path(), "amdgpu-drm-pages-"));
  EXPECT_EQ(pages.size(), 6U);
  for (const std::string& name : pages)
    EXPECT_TRUE(read_file(scene_.images() / name) == read_file(before.path() / name)) << name;
  for (const std::string& name : images("amdgpu-renderD-"))
    EXPECT_EQ(bos_in(scene_.images(), name), bos_in(before.path(), name)) << name;
}

// Such a BO in GTT may be imported: nobody can tell.
TEST_P(UpstreamImagesTest, ABoThatThoseOfCriuDevCallImportedIsRefusedWhereItMayBe) {
  ASSERT_NO_FATAL_FAILURE(start({"--svm-context", "--gem-handles", "1,3"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_TRUE(test::make_upstreams(scene_.images(), UpstreamForm::Dev).ok());
  EXPECT_NE(scene_.restore(version()), 0);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("(GEM handle 3) is imported, and the image does not say whose memory it is"),
            std::string::npos)
      << log;
  expect_not_resumed();
}

// A BO of the KFD that a render file of the same GPU has imported is one like its own to the kernel's list,
// under a handle that says nothing. Each would be made, and the one memory be two.
TEST_P(UpstreamImagesTest, MemoryThatThoseOfCriuDevShowTwiceIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start({"--svm-context", "--share", "kfd"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  {
    const UniqueFd directory(::open(scene_.images().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (const std::string& name : images("amdgpu-renderD-")) {
      RenderImage image = unpack_render_image(read_image(directory.get(), name).value(), name, {}).value();
      for (RenderBo& bo : image.bos) bo.imports = false;
      ASSERT_TRUE(write_image(directory.get(), name, pack_render_image(image, {}), false).ok());
    }
  }
  ASSERT_TRUE(test::make_upstreams(scene_.images(), UpstreamForm::Dev).ok());
  EXPECT_NE(scene_.restore(version()), 0);
  const std::string log = scene_.log();
  EXPECT_EQ(times_in(log, "are the same memory, and images of upstream's plugin do not say which"), 1U)
      << log;
  expect_not_resumed();
}

// Where there is nothing to verify with, nothing was to be verified.
TEST_P(UpstreamImagesTest, NothingIsSaidOfChecksumsThatNobodyWants) {
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_TRUE(test::make_upstreams(scene_.images(), UpstreamForm::Released).ok());
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_EQ(times_in(scene_.log(), "checksums"), 0U);
  expect_whole();
}

// On machines where GPUs have other ids the render files say by the process' what they are of.
TEST_P(UpstreamImagesTest, ThoseOfAReleasedPluginComeBackOnOtherGpus) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_TRUE(test::make_upstreams(scene_.images(), UpstreamForm::Released).ok());
  vamdgpu::MachineOptions other = small_machine();
  other.gpu_ids = {0x1234, 0x4321};
  scene_.move_to(other);
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  expect_whole();
}

// Upstream's plugin pairs GPUs of the image in its order with local ones in that of the directories, and
// takes the first arrangement that fits. So equal GPUs come back as themselves where both are the same.
TEST_P(UpstreamImagesTest, OursListNodesAndLinksAsTheDirectoriesDo) {
  if (version() != kVersions[0].name) return;  // the host has no part in it
  const auto listed = [](const std::filesystem::path& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      names.push_back(entry.path().filename().string());
    return names;
  };
  for (const unsigned gpus : {1U, 2U, 4U, 8U}) {
    vamdgpu::MachineOptions options = small_machine(gpus);
    options.preset = vamdgpu::Preset::Mi300x;  // all of them in one hive
    options.vram_bytes = options.gtt_bytes = 4 * kMiB;
    scene_.move_to(options);
    const std::string ready =
        scene_.start_subject({"--one-bo", "1M", "--no-queues", "--no-userptr", "--no-events"});
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
    ASSERT_NO_FATAL_FAILURE(dump());
    const KfdImage image = kfd_image();
    const std::filesystem::path nodes = scene_.machine().topology() / "nodes";
    const std::vector<std::string> names = listed(nodes);
    ASSERT_EQ(image.topology.listing.size(), names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      const kfd::ListedNode& node = image.topology.listing[i];
      EXPECT_EQ(std::to_string(node.node_id), names[i]) << gpus << " GPUs, entry " << i;
      std::vector<kfd::IoLink> links;
      for (const std::string& link : listed(nodes / names[i] / "io_links")) {
        const std::string text = read_file(nodes / names[i] / "io_links" / link / "properties");
        const auto value = [&](const std::string& property) {
          return static_cast<std::uint32_t>(std::stoul(text.substr(text.find(property) + property.size())));
        };
        links.push_back({value("type "), value("node_to ")});
      }
      EXPECT_EQ(node.links, links) << gpus << " GPUs, node " << names[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, UpstreamImagesTest, ::testing::ValuesIn(kVersions), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
