// SPDX-License-Identifier: MIT
#include "images/chain/predump_mark.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <vector>

#include "images/files/digest.h"

namespace sluice {
namespace {

PreDumpMark sample() {
  PreDumpMark mark{{"amdgpu-predump-kfd-0.img", "amdgpu-predump-renderD-1.img"}, 1234567, {}};
  mark.dump_id.fill(7);
  return mark;
}

TEST(PreDumpMark, ComesBackAsItWasWritten) {
  const auto mark = unpack_predump_mark(pack_predump_mark(sample(), {}), {});
  ASSERT_TRUE(mark.ok());
  EXPECT_EQ(mark->images, sample().images);
  EXPECT_EQ(mark->frozen_ns, sample().frozen_ns);
  EXPECT_EQ(mark->dump_id, sample().dump_id);
}

TEST(PreDumpMark, WithAChangedByteIsDamaged) {
  const std::vector<std::uint8_t> whole = pack_predump_mark(sample(), {});
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::vector<std::uint8_t> changed = whole;
    changed[i] ^= 1;
    const auto mark = unpack_predump_mark(changed, {});
    ASSERT_FALSE(mark.ok()) << i;
    EXPECT_EQ(mark.error().err, EBADMSG) << i;
  }
}

TEST(PreDumpMark, ThatSaysNoDumpIsNone) {
  const auto mark = unpack_predump_mark(with_digest({}, MessageKind::PreDumpMark, {}), {});
  ASSERT_FALSE(mark.ok());
  EXPECT_EQ(mark.error().err, EBADMSG);
}

}  // namespace
}  // namespace sluice
