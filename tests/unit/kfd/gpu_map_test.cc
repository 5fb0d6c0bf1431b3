// SPDX-License-Identifier: MIT
// SLUICE_GPU_MAP: every way to name a GPU, and every way to name none.
#include "kfd/matching/gpu_map.h"

#include <gtest/gtest.h>

#include "support/machines.h"

namespace sluice::kfd {
namespace {

using test::mi210_machine;

class GpuMapTest : public ::testing::Test {
 protected:
  GpuMapTest() {
    for (Node& node : local_.nodes) {
      if (!node.is_gpu()) continue;
      node.location_id = (0xc0 + node.node_id) << 8;
      node.drm_render_minor = 140 + node.node_id;
    }
  }

  Result<std::vector<MappedGpu>> resolved(const std::string& text) {
    SLUICE_TRY_ASSIGN(const GpuMap map, GpuMap::parse(text));
    return map.resolve(sources_, local_);
  }

  // In the images GPUs 0x2000 and 0x2001, renderD128 and 129; here 0x5000 to 0x5002, renderD141 to 143.
  std::vector<Topology> sources_{mi210_machine(2, false, 0x2000)};
  Topology local_ = mi210_machine(3, false, 0x5000);
};

TEST_F(GpuMapTest, takes_every_name_of_a_gpu) {
  const std::vector<MappedGpu> second_on_third = {{129, 0x5002}};
  for (const char* text :
       {"0x2001=0x5002", "8193=0x5002", "renderD129=0x5002", "0x2001=0000:c3:00.0", "0x2001=0000:C3:00.0",
        "0x2001=renderD143", "0x2001=143", "0x2001=20482", " 0x2001 = 0x5002 "}) {
    const auto map = resolved(text);
    ASSERT_TRUE(map.ok()) << text << ": " << map.error().what;
    EXPECT_EQ(*map, second_on_third) << text;
  }
  EXPECT_EQ(*resolved("0x2000=0x5001,0x2001=141"), (std::vector<MappedGpu>{{128, 0x5001}, {129, 0x5000}}));
}

TEST_F(GpuMapTest, refuses_what_is_no_map) {
  for (const char* text :
       {"", "0x2000", "0x2000=", "=0x5000", "0x2000=0x5000,", "0x2000=0x5000;0x2001=0x5001", "0x2000=gpu1",
        "0x=0x5000", "-1=0x5000", "0x100002000=0x5000", "0x2000=c1:00.0", "0x2000=0x5000=0x5001",
        "renderD=0x5000", "0000:c1:00.0=0x5000"}) {
    const auto map = resolved(text);
    ASSERT_FALSE(map.ok()) << text;
    EXPECT_EQ(map.error().err, EINVAL) << text;
    EXPECT_NE(map.error().what.find("SLUICE_GPU_MAP"), std::string::npos) << map.error().what;
  }
}

TEST_F(GpuMapTest, refuses_gpus_that_are_not_there) {
  for (const char* text : {"0x2002=0x5000", "renderD140=0x5000", "0x2000=0x5009", "0x2000=0000:ff:00.0",
                           "0x2000=renderD128", "0x2000=128"}) {
    const auto map = resolved(text);
    ASSERT_FALSE(map.ok()) << text;
    EXPECT_EQ(map.error().err, EINVAL);
  }
}

TEST_F(GpuMapTest, refuses_a_gpu_that_is_named_twice_on_either_side) {
  for (const char* text : {"0x2000=0x5000,0x2000=0x5001", "0x2000=0x5000,renderD128=0x5001",
                           "0x2000=0x5000,0x2001=0x5000", "0x2000=0x5000,0x2001=renderD141"})
    EXPECT_FALSE(resolved(text).ok()) << text;
}

TEST_F(GpuMapTest, refuses_a_number_that_is_one_gpus_id_and_anothers_render_minor) {
  local_.nodes[1].gpu_id = 142;
  EXPECT_FALSE(resolved("0x2000=142").ok());
  EXPECT_EQ(*resolved("0x2000=renderD142"), (std::vector<MappedGpu>{{128, 0x5001}}));
  EXPECT_EQ(*resolved("0x2000=0x8e"), (std::vector<MappedGpu>{{128, 142}}));
  // Of one GPU it may be both.
  local_.nodes[1].gpu_id = 0x5000;
  local_.nodes[2].gpu_id = 142;
  EXPECT_EQ(*resolved("0x2000=142"), (std::vector<MappedGpu>{{128, 142}}));
}

// One process was restored before, and knows the second GPU by what is the first's own id.
TEST_F(GpuMapTest, refuses_an_id_by_which_processes_know_different_gpus) {
  sources_.push_back(mi210_machine(2, false, 0x2000));
  std::swap(sources_[1].nodes[1].drm_render_minor, sources_[1].nodes[2].drm_render_minor);
  const auto map = resolved("0x2000=0x5000");
  ASSERT_FALSE(map.ok());
  EXPECT_NE(map.error().what.find("renderD128 or renderD129"), std::string::npos) << map.error().what;
  EXPECT_EQ(*resolved("renderD129=0x5000"), (std::vector<MappedGpu>{{129, 0x5000}}));
}

TEST_F(GpuMapTest, refuses_more_gpus_than_a_process_can_have) {
  std::string text = "0x2000=0x5000";
  for (unsigned i = 0; i < kGpusMax; ++i) text += ",0x2000=0x5000";
  EXPECT_FALSE(GpuMap::parse(text).ok());
}

TEST_F(GpuMapTest, shows_what_it_does_not_understand_in_printable_characters) {
  const auto map = resolved(std::string("\x1b[2J", 4) + std::string(5000, 'x'));
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.error().what.find('\x1b'), std::string::npos);
  EXPECT_LT(map.error().what.size(), 400U);
}

}  // namespace
}  // namespace sluice::kfd
