// SPDX-License-Identifier: MIT
// Who makes memory that several files have, and what nobody could make again. Memory files stand for
// dma-bufs: what tells one from another is the inode.
#include "plugin/dump/contents/shared_bos.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "images/metadata.h"

namespace sluice::plugin {
namespace {

UniqueFd dmabuf() {
  return UniqueFd(::memfd_create("dmabuf", MFD_CLOEXEC));
}

ino_t inode_of(const UniqueFd& fd) {
  struct stat st {};
  EXPECT_EQ(::fstat(fd.get(), &st), 0);
  return st.st_ino;
}

SharedBos::Holder of_kfd(const std::string& name, bool looks_imported = false,
                         std::pair<std::uint32_t, std::uint64_t> place = {}) {
  return {name, true, looks_imported, true, 0, place};
}

SharedBos::Holder of_render(const std::string& name, std::uint32_t handle, bool can_create = true) {
  return {name, false, false, can_create, handle, {}};
}

// REQUIRES: it is taken.
std::size_t add(SharedBos& bos, const UniqueFd& memory, SharedBos::Holder holder) {
  return bos.add(memory.get(), std::move(holder)).value();
}

TEST(SharedBos, MemoryOfOneFileAloneIsNotShared) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  const std::size_t only = add(bos, memory, of_kfd("a"));
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_EQ(bos.share_of(only).number, 0U);
  EXPECT_EQ(bos.share_of_dmabuf(inode_of(memory)).number, 0U);
}

TEST(SharedBos, WhatOnlyImportersAreSavedOfIsLost) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  const std::size_t maker = add(bos, memory, of_kfd("maker's BO"));
  const std::size_t importer = add(bos, memory, of_render("importer", 7));
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_TRUE(bos.check_saved().ok());
  bos.note_saved(0, false);
  bos.note_saved(bos.share_of(importer).number, bos.share_of(importer).imports);
  const auto lost = bos.check_saved();
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().err, EINVAL);
  EXPECT_TRUE(lost.error().what.starts_with("maker's BO is memory")) << lost.error().what;
  bos.note_saved(bos.share_of(maker).number, bos.share_of(maker).imports);
  EXPECT_TRUE(bos.check_saved().ok());
}

TEST(SharedBos, TheKfdProcessThatAllocatedItMakesIt) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  const std::size_t render = add(bos, memory, of_render("renderD128", 7));
  const std::size_t importer = add(bos, memory, of_kfd("importer", true));
  const std::size_t kfd = add(bos, memory, of_kfd("owner"));
  ASSERT_TRUE(bos.settle().ok());
  for (const std::size_t holder : {render, kfd, importer}) EXPECT_EQ(bos.share_of(holder).number, 1U);
  EXPECT_TRUE(bos.share_of(render).imports);
  EXPECT_TRUE(bos.share_of(importer).imports);
  EXPECT_FALSE(bos.share_of(kfd).imports);
  EXPECT_EQ(bos.share_of(kfd).handle, 7U) << "upstream knows it by the render file's handle";
  EXPECT_EQ(bos.share_of_dmabuf(inode_of(memory)).handle, 7U);
}

TEST(SharedBos, ElseARenderFileMakesItBeforeAKfdProcessThatImportedIt) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  const std::size_t importer = add(bos, memory, of_kfd("importer", true));
  const std::size_t render = add(bos, memory, of_render("renderD128", 3));
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_TRUE(bos.share_of(importer).imports);
  EXPECT_FALSE(bos.share_of(render).imports);
}

// An old kernel gives each KFD process a dma-buf of its own.
TEST(SharedBos, OneMemoryOfTwoKfdProcessesIsToldByItsPlaceToo) {
  SharedBos bos;
  const UniqueFd owners = dmabuf(), importers = dmabuf(), others = dmabuf();
  const std::size_t owner = add(bos, owners, of_kfd("owner", false, {128, 0x10000}));
  const std::size_t importer = add(bos, importers, of_kfd("importer", true, {128, 0x10000}));
  const std::size_t other = add(bos, others, of_kfd("another GPU's", false, {129, 0x10000}));
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_EQ(bos.share_of(owner).number, 1U);
  EXPECT_EQ(bos.share_of(importer).number, 1U);
  EXPECT_FALSE(bos.share_of(owner).imports);
  EXPECT_TRUE(bos.share_of(importer).imports);
  EXPECT_EQ(bos.share_of(other).number, 0U);
}

TEST(SharedBos, ADescriptorOfItMakesItShared) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  const std::size_t only = add(bos, memory, of_render("renderD128", 3));
  bos.add_descriptor(inode_of(memory));
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_EQ(bos.share_of(only).number, 1U);
  EXPECT_FALSE(bos.share_of(only).imports);
}

// As Linux 6.1 makes one anew for each checkpoint.
TEST(SharedBos, AnotherDmaBufOfAMemoryIsToldByItsPlace) {
  SharedBos bos;
  const UniqueFd exported = dmabuf(), open = dmabuf(), elsewhere = dmabuf();
  const std::size_t kfd = add(bos, exported, of_kfd("kfd", true, {128, 0x1000}));
  for (const UniqueFd* one : {&open, &elsewhere}) {
    bos.add_descriptor(inode_of(*one));
    EXPECT_FALSE(bos.has_holder(inode_of(*one)));
  }
  EXPECT_TRUE(bos.find_at(inode_of(open), {128, 0x1000}));
  EXPECT_FALSE(bos.find_at(inode_of(elsewhere), {129, 0x1000})) << "another GPU's";
  EXPECT_FALSE(bos.find_at(inode_of(elsewhere), {128, 0})) << "[SL-D27]";
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_NE(bos.share_of(kfd).number, 0U) << "the descriptor has it, too";
  EXPECT_EQ(bos.share_of_dmabuf(inode_of(open)).number, bos.share_of(kfd).number);
  EXPECT_EQ(bos.share_of_dmabuf(inode_of(elsewhere)).number, 0U);
}

TEST(SharedBos, MoreThanARestoreTakesAreRefused) {
  SharedBos bos;
  const auto add_shared = [&bos](const std::string& name) {
    const UniqueFd memory = dmabuf();
    (void)add(bos, memory, of_render(name, 1));
    bos.add_descriptor(inode_of(memory));
  };
  for (std::size_t i = 0; i < kMostSharedBos; ++i) add_shared("one of many");
  ASSERT_TRUE(bos.settle().ok());
  add_shared("the last");
  const auto refused = bos.settle();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().err, E2BIG);
  EXPECT_TRUE(refused.error().what.starts_with("the last is shared")) << refused.error().what;
}

TEST(SharedBos, OfSomethingElseThereIsNoNumber) {
  SharedBos bos;
  const UniqueFd known = dmabuf();
  const UniqueFd unknown = dmabuf();
  bos.add_descriptor(inode_of(known));
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_EQ(bos.share_of_dmabuf(inode_of(known)).number, 0U);
  EXPECT_EQ(bos.share_of_dmabuf(inode_of(unknown)).number, 0U);
}

TEST(SharedBos, MemoryOfAGpuWhereNobodyHasItCannotBeMadeAgain) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  (void)add(bos, memory, of_render("BO 4 of renderD128", 4, false));
  (void)add(bos, memory, of_render("BO 9 of renderD129", 9, false));
  const auto settled = bos.settle();
  ASSERT_FALSE(settled.ok());
  EXPECT_EQ(settled.error().err, EINVAL);
  EXPECT_EQ(settled.error().what,
            "BO 4 of renderD128 is memory of another GPU where no process of the tree allocated it; dump the "
            "process that did in the same tree [SL-D15]");
}

// It is in somebody's image by then.
TEST(SharedBos, WhoComesWhenItIsSettledIsRefused) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  (void)add(bos, memory, of_kfd("first"));
  ASSERT_TRUE(bos.settle().ok());
  const auto added = bos.add(memory.get(), of_kfd("late"));
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.error().err, EINVAL);
  EXPECT_NE(added.error().what.find("late is the same memory as first"), std::string::npos)
      << added.error().what;
}

TEST(SharedBos, WhatIsNoFileIsAnError) {
  SharedBos bos;
  EXPECT_EQ(bos.add(-1, of_kfd("a")).error().err, EBADF);
}

}  // namespace
}  // namespace sluice::plugin
