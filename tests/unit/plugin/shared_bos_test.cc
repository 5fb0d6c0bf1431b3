// SPDX-License-Identifier: MIT
// Who makes memory that several files have, and what nobody could make again. Memory files stand for
// dma-bufs: what tells one from another is the inode.
#include "plugin/dump/shared_bos.h"

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

// What settle() sets of a holder.
struct Part {
  std::uint32_t shared = 0;
  std::uint32_t kfd_handle = 0;
  bool imports = false;

  SharedBos::Holder of_kfd(const std::string& name, bool looks_imported = false) {
    return {name, true, looks_imported, true, 0, &shared, &kfd_handle, &imports};
  }
  SharedBos::Holder of_render(const std::string& name, std::uint32_t handle, bool can_create = true) {
    return {name, false, false, can_create, handle, &shared, nullptr, &imports};
  }
};

TEST(SharedBos, MemoryOfOneFileAloneIsNotShared) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  Part only;
  ASSERT_TRUE(bos.add(memory.get(), only.of_kfd("a")).ok());
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_EQ(only.shared, 0U);
  EXPECT_EQ(bos.number_of(inode_of(memory)).shared, 0U);
}

TEST(SharedBos, WhatOnlyImportersAreSavedOfIsLost) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  Part maker, importer;
  ASSERT_TRUE(bos.add(memory.get(), maker.of_kfd("maker's BO")).ok());
  ASSERT_TRUE(bos.add(memory.get(), importer.of_render("importer", 7)).ok());
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_TRUE(bos.check_saved().ok());
  bos.note_saved(0, false);
  bos.note_saved(importer.shared, importer.imports);
  const auto lost = bos.check_saved();
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().err, EINVAL);
  EXPECT_TRUE(lost.error().what.starts_with("maker's BO is memory")) << lost.error().what;
  bos.note_saved(maker.shared, maker.imports);
  EXPECT_TRUE(bos.check_saved().ok());
}

TEST(SharedBos, TheKfdProcessThatAllocatedItMakesIt) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  Part render, kfd, importer;
  ASSERT_TRUE(bos.add(memory.get(), render.of_render("renderD128", 7)).ok());
  ASSERT_TRUE(bos.add(memory.get(), importer.of_kfd("importer", true)).ok());
  ASSERT_TRUE(bos.add(memory.get(), kfd.of_kfd("owner")).ok());
  ASSERT_TRUE(bos.settle().ok());
  for (const Part* part : {&render, &kfd, &importer}) EXPECT_EQ(part->shared, 1U);
  EXPECT_TRUE(render.imports);
  EXPECT_TRUE(importer.imports);
  EXPECT_FALSE(kfd.imports);
  EXPECT_EQ(kfd.kfd_handle, 7U) << "upstream knows it by the render file's handle";
  EXPECT_EQ(bos.number_of(inode_of(memory)).handle, 7U);
}

TEST(SharedBos, ElseARenderFileMakesItBeforeAKfdProcessThatImportedIt) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  Part importer, render;
  ASSERT_TRUE(bos.add(memory.get(), importer.of_kfd("importer", true)).ok());
  ASSERT_TRUE(bos.add(memory.get(), render.of_render("renderD128", 3)).ok());
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_TRUE(importer.imports);
  EXPECT_FALSE(render.imports);
}

// An old kernel gives each KFD process a dma-buf of its own.
TEST(SharedBos, OneMemoryOfTwoKfdProcessesIsToldByItsPlaceToo) {
  SharedBos bos;
  const UniqueFd owners = dmabuf(), importers = dmabuf(), others = dmabuf();
  Part owner, importer, other;
  const auto add = [&bos](const UniqueFd& memory, SharedBos::Holder holder,
                          std::pair<std::uint32_t, std::uint64_t> place) {
    holder.place = place;
    return bos.add(memory.get(), std::move(holder)).ok();
  };
  ASSERT_TRUE(add(owners, owner.of_kfd("owner"), {128, 0x10000}));
  ASSERT_TRUE(add(importers, importer.of_kfd("importer", true), {128, 0x10000}));
  ASSERT_TRUE(add(others, other.of_kfd("another GPU's"), {129, 0x10000}));
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_EQ(owner.shared, 1U);
  EXPECT_EQ(importer.shared, 1U);
  EXPECT_FALSE(owner.imports);
  EXPECT_TRUE(importer.imports);
  EXPECT_EQ(other.shared, 0U);
}

TEST(SharedBos, ADescriptorOfItMakesItShared) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  Part only;
  ASSERT_TRUE(bos.add(memory.get(), only.of_render("renderD128", 3)).ok());
  bos.add_descriptor(inode_of(memory));
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_EQ(only.shared, 1U);
  EXPECT_FALSE(only.imports);
}

// As Linux 6.1 makes one anew for each checkpoint.
TEST(SharedBos, AnotherDmaBufOfAMemoryIsToldByItsPlace) {
  SharedBos bos;
  const UniqueFd exported = dmabuf(), open = dmabuf(), elsewhere = dmabuf();
  Part kfd;
  SharedBos::Holder holder = kfd.of_kfd("kfd", true);
  holder.place = {128, 0x1000};
  ASSERT_TRUE(bos.add(exported.get(), holder).ok());
  for (const UniqueFd* one : {&open, &elsewhere}) {
    bos.add_descriptor(inode_of(*one));
    EXPECT_FALSE(bos.has_holder(inode_of(*one)));
  }
  EXPECT_TRUE(bos.find_at(inode_of(open), {128, 0x1000}));
  EXPECT_FALSE(bos.find_at(inode_of(elsewhere), {129, 0x1000})) << "another GPU's";
  EXPECT_FALSE(bos.find_at(inode_of(elsewhere), {128, 0})) << "no CPU may map it";
  ASSERT_TRUE(bos.settle().ok());
  EXPECT_NE(kfd.shared, 0U) << "the descriptor has it, too";
  EXPECT_EQ(bos.number_of(inode_of(open)).shared, kfd.shared);
  EXPECT_EQ(bos.number_of(inode_of(elsewhere)).shared, 0U);
}

TEST(SharedBos, MoreThanARestoreTakesAreRefused) {
  SharedBos bos;
  std::vector<Part> parts(kMostSharedBos + 1);
  const auto add = [&bos](Part& part, const std::string& name) {
    const UniqueFd memory = dmabuf();
    ASSERT_TRUE(bos.add(memory.get(), part.of_render(name, 1)).ok());
    bos.add_descriptor(inode_of(memory));
  };
  for (std::size_t i = 0; i < kMostSharedBos; ++i) add(parts[i], "one of many");
  ASSERT_TRUE(bos.settle().ok());
  add(parts.back(), "the last");
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
  EXPECT_EQ(bos.number_of(inode_of(known)).shared, 0U);
  EXPECT_EQ(bos.number_of(inode_of(unknown)).shared, 0U);
}

TEST(SharedBos, MemoryOfAGpuWhereNobodyHasItCannotBeMadeAgain) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  Part first, second;
  ASSERT_TRUE(bos.add(memory.get(), first.of_render("BO 4 of renderD128", 4, false)).ok());
  ASSERT_TRUE(bos.add(memory.get(), second.of_render("BO 9 of renderD129", 9, false)).ok());
  const auto settled = bos.settle();
  ASSERT_FALSE(settled.ok());
  EXPECT_EQ(settled.error().err, EINVAL);
  EXPECT_EQ(settled.error().what,
            "BO 4 of renderD128 is memory of another GPU that no process of the tree has there; it cannot be "
            "made again");
}

// It is in somebody's image by then.
TEST(SharedBos, WhoComesWhenItIsSettledIsRefused) {
  SharedBos bos;
  const UniqueFd memory = dmabuf();
  Part first, late;
  ASSERT_TRUE(bos.add(memory.get(), first.of_kfd("first")).ok());
  ASSERT_TRUE(bos.settle().ok());
  const auto added = bos.add(memory.get(), late.of_kfd("late"));
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.error().err, EINVAL);
  EXPECT_NE(added.error().what.find("late is the same memory as first"), std::string::npos)
      << added.error().what;
}

TEST(SharedBos, WhatIsNoFileIsAnError) {
  SharedBos bos;
  Part part;
  EXPECT_EQ(bos.add(-1, part.of_kfd("a")).error().err, EBADF);
}

}  // namespace
}  // namespace sluice::plugin
