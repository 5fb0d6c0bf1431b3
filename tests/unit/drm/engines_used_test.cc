// SPDX-License-Identifier: MIT
// What a DRM file's fdinfo says of the engines that have worked for it.
#include <gtest/gtest.h>

#include <fstream>

#include "drm/target_file.h"
#include "support/temp_dir.h"

namespace sluice::drm {
namespace {

std::vector<std::string> engines_of(const std::string& fdinfo) {
  const test::TempDir dir;
  std::ofstream(dir.path() + "/7") << fdinfo;
  return engines_used(7, dir.path().c_str());
}

TEST(EnginesUsed, AreThoseThatHaveWorked) {
  EXPECT_EQ(engines_of("pos:\t0\nflags:\t02100002\ndrm-driver:\tamdgpu\ndrm-client-id:\t42\n"
                       "drm-memory-vram:\t8192 KiB\ndrm-engine-gfx:\t0 ns\ndrm-engine-compute:\t1500 ns\n"
                       "drm-engine-capacity-compute:\t4\ndrm-engine-dma:\t1 ns\n"),
            (std::vector<std::string>{"compute", "dma"}));
}

TEST(EnginesUsed, AreNoneWhereNothingIsSaid) {
  EXPECT_TRUE(engines_of("pos:\t0\nflags:\t02100002\n").empty());
  EXPECT_TRUE(engines_of("drm-engine-\ndrm-engine-dma:\n").empty());
  EXPECT_TRUE(engines_used(7, "/nowhere").empty());
}

}  // namespace
}  // namespace sluice::drm
