// SPDX-License-Identifier: MIT
// Images of a stream: each asked for once, framed as in files, kept for whoever asks again, and never
// believed. This program is the host: it has CRIU's symbols, and keeps the images of its streamer in memory.
#include "plugin/host/image_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "images/files/digest.h"
#include "plugin/restore/survey/found_images.h"
#include "support/unknown_fields.h"

namespace {

std::map<std::string, std::string> served;      // what the streamer has
std::map<std::string, sluice::UniqueFd> taken;  // readers of what it was sent
std::vector<std::string> asked;
sluice::UniqueFd ours, streamers;  // ends of the connection
int wanted_flags = O_RDONLY;
bool refuses = false, dies = false;  // the streamer, or the host, when it is asked

}  // namespace

extern "C" {
int get_service_fd(int type);
int img_streamer_open(char* filename, int flags);

int get_service_fd(int type) {
  return type == 3 ? ours.get() : -1;
}

int img_streamer_open(char* filename, int flags) {
  EXPECT_EQ(flags, wanted_flags);
  asked.emplace_back(filename);
  std::array<int, 2> ends{};
  if (dies) streamers.reset();
  if (dies || refuses || ::pipe(ends.data()) != 0) return -1;
  sluice::UniqueFd reader(ends[0]);
  sluice::UniqueFd writer(ends[1]);
  if (flags != O_RDONLY) {
    taken[filename] = std::move(reader);
    return writer.release();
  }
  const auto file = served.find(filename);
  if (file == served.end()) return -ENOENT;
  EXPECT_EQ(::write(writer.get(), file->second.data(), file->second.size()),
            static_cast<ssize_t>(file->second.size()));
  return reader.release();
}
}

namespace sluice::plugin {
namespace {

std::string framed(const std::string& payload) {
  std::string text(8, '\0');
  text[0] = static_cast<char>(payload.size());
  return text + payload;
}

std::string text_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

struct StreamStoreTest : public ::testing::Test {
  StreamStoreTest() {
    served.clear();
    taken.clear();
    asked.clear();
    wanted_flags = O_RDONLY;
    refuses = dies = false;
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    ours.reset(ends[0]);
    streamers.reset(ends[1]);
  }

  std::unique_ptr<ImageStore> store = ImageStore::of_stream();
};

TEST_F(StreamStoreTest, TheHostSaysWhereImagesGo) {
  EXPECT_TRUE(ImageStore::of_host()->one_way());
  ours.reset();
  EXPECT_FALSE(ImageStore::of_host()->one_way());
}

TEST_F(StreamStoreTest, NothingIsThereToBeRemoved) {
  EXPECT_TRUE(store->clear(IoMode::Direct, 4096, true)->empty());
  EXPECT_TRUE(store->rename("old.img", "new.img").ok());
  EXPECT_TRUE(store->remove("old.img").ok());
  store->remove_from_signal("old.img");
  EXPECT_TRUE(asked.empty());
}

TEST_F(StreamStoreTest, WhatIsSavedIsFramedAndEnds) {
  wanted_flags = O_WRONLY | O_CREAT | O_TRUNC;
  const std::vector<std::uint8_t> payload{'a', 'b'};
  ASSERT_TRUE(store->save("saved.img", payload, true).ok());
  std::array<char, 64> bytes{};
  EXPECT_EQ(::read(taken.at("saved.img").get(), bytes.data(), bytes.size()), 10);
  EXPECT_EQ(std::string(bytes.data(), 10), framed("ab"));
  EXPECT_EQ(::read(taken.at("saved.img").get(), bytes.data(), bytes.size()), 0);
}

TEST_F(StreamStoreTest, AnImageIsAskedForOnceAndKept) {
  served["kept.img"] = framed("payload");
  for (int i = 0; i < 2; ++i) {
    const auto payload = store->load("kept.img");
    ASSERT_TRUE(payload.ok()) << payload.error().what;
    EXPECT_EQ(text_of(*payload), "payload");
  }
  EXPECT_EQ(asked, std::vector<std::string>{"kept.img"});
}

TEST_F(StreamStoreTest, WhatTheStreamerHasNotIsNotThere) {
  EXPECT_EQ(store->load("none.img").error().err, ENOENT);
}

TEST_F(StreamStoreTest, ADeadStreamerIsAnErrorOfItsOwn) {
  dies = true;
  const auto payload = store->load("any.img");
  ASSERT_FALSE(payload.ok());
  EXPECT_EQ(payload.error().err, ECONNRESET);
  EXPECT_NE(payload.error().what.find("any.img"), std::string::npos);
}

// The host has no descriptors left, for example.
TEST_F(StreamStoreTest, AStreamerThatLivesIsNotCalledDead) {
  refuses = true;
  const auto payload = store->load("living.img");
  ASSERT_FALSE(payload.ok());
  EXPECT_EQ(payload.error().err, EIO);
  EXPECT_TRUE(has_id(payload.error().what));
  EXPECT_NE(payload.error().what.find("[SL-H24]"), std::string::npos);
}

// The host would tell its log of it, whichever thread asks.
TEST_F(StreamStoreTest, AStreamerThatHasLeftIsNotAsked) {
  streamers.reset();
  EXPECT_EQ(store->load("left.img").error().err, ECONNRESET);
  EXPECT_TRUE(asked.empty());
}

// The streamer would end of it: it has sent the file.
TEST_F(StreamStoreTest, WhatCouldNotBeReadIsNotAskedForAgain) {
  served["cut.img"] = framed("payload").substr(0, 12);
  EXPECT_EQ(store->load("cut.img").error().err, EBADMSG);
  served["cut.img"] = framed("payload");
  EXPECT_EQ(store->load("cut.img").error().err, EBADMSG);
  EXPECT_EQ(asked, std::vector<std::string>{"cut.img"});
}

TEST_F(StreamStoreTest, ALengthThatIsNotTheStreamsIsDamage) {
  served["short.img"] = framed("payload").substr(0, 12);
  served["long.img"] = framed("payload") + "x";
  served["empty.img"] = "";
  for (const char* name : {"short.img", "long.img", "empty.img"})
    EXPECT_EQ(store->load(name).error().err, EBADMSG) << name;
}

// What comes is kept until the end: a stream has no length that could be asked for.
TEST_F(StreamStoreTest, AnImageThatDoesNotEndIsRefusedAtItsBound) {
  served["endless.img"] = framed("payload");
  EXPECT_TRUE(load_stream("endless.img", served["endless.img"].size()).ok());
  const auto payload = load_stream("endless.img", served["endless.img"].size() - 1);
  ASSERT_FALSE(payload.ok());
  EXPECT_EQ(payload.error().err, EBADMSG);
  EXPECT_NE(payload.error().what.find("[SL-I25]"), std::string::npos);
}

TEST_F(StreamStoreTest, AnIndexOfTinyPartsTakesBoundedMemory) {
  const auto parse = [](std::size_t fields) {
    return parse_index(with_digest(test::with_unknown_fields({}, fields), MessageKind::StreamIndex, {}), {})
        .ok();
  };
  EXPECT_TRUE(parse(test::kFieldsThatFit));
  EXPECT_FALSE(parse(test::kFieldsThatDoNot));
}

// Of what a restore surveys before there are tasks.
TEST_F(StreamStoreTest, AnIndexThatCannotBeReadIsFatalIfItIsDamagedOrAKeyIsUsed) {
  const auto survey = [](const std::optional<ImageKey>& key) {
    const std::unique_ptr<ImageStore> fresh = ImageStore::of_stream();
    fresh->set_keys(ImageKeys(key));
    const auto found = find_images(*fresh);
    return found ? 0 : found.error().err;
  };
  EXPECT_EQ(survey({}), 0) << "none";
  refuses = true;
  EXPECT_EQ(survey({}), 0) << "it may come later";
  EXPECT_NE(survey(ImageKey{7}), 0);
  refuses = false;
  served[kIndexImage] = framed("damaged");
  EXPECT_EQ(survey({}), EBADMSG);
}

TEST_F(StreamStoreTest, AnImageThatTheIndexNamesAndNobodyHasIsNoErrorOfTheSurvey) {
  wanted_flags = O_WRONLY | O_CREAT | O_TRUNC;
  ASSERT_TRUE(store->save_index({{"amdgpu-kfd-1.img"}, {}, DumpId{5}}).ok());
  std::array<char, 256> bytes{};
  const ssize_t got = ::read(taken.at(kIndexImage).get(), bytes.data(), bytes.size());
  ASSERT_GT(got, 8);
  served[kIndexImage] = std::string(bytes.data(), static_cast<std::size_t>(got));
  wanted_flags = O_RDONLY;
  const auto found = find_images(*ImageStore::of_stream());
  ASSERT_TRUE(found.ok()) << found.error().what;
  EXPECT_FALSE(found->checkpoint.unread.has_value());
}

TEST_F(StreamStoreTest, AnIndexWithHalfAnIdIsDamage) {
  // dump_id (1005, bytes; proto/sluice-stream.proto), of two bytes.
  const std::vector<std::uint8_t> half = {0xea, 0x3e, 2, 0x12, 0x34};
  const auto index = parse_index(with_digest(half, MessageKind::StreamIndex, {}), {});
  ASSERT_FALSE(index.ok());
  EXPECT_EQ(index.error().err, EBADMSG);
  EXPECT_NE(index.error().what.find("[SL-I27]"), std::string::npos) << index.error().what;
}

TEST_F(StreamStoreTest, TheIndexTellsWhatThereIs) {
  wanted_flags = O_WRONLY | O_CREAT | O_TRUNC;
  ASSERT_TRUE(store
                  ->save_index({{"amdgpu-renderD-3.img", "amdgpu-kfd-2.img", "amdgpu-kfd-1.img"},
                                {{7, {{0x1000, 0x10}, {0x3000, 0x20}}}, {8, {}}},
                                DumpId{5}})
                  .ok());
  std::array<char, 256> bytes{};
  const ssize_t got = ::read(taken.at("amdgpu-sluice-index.img").get(), bytes.data(), bytes.size());
  ASSERT_GT(got, 8);
  served["amdgpu-sluice-index.img"] = std::string(bytes.data(), static_cast<std::size_t>(got));
  wanted_flags = O_RDONLY;
  const auto names = store->names();
  ASSERT_TRUE(names.ok()) << names.error().what;
  EXPECT_EQ(*names,
            (std::vector<std::string>{"amdgpu-renderD-3.img", "amdgpu-kfd-2.img", "amdgpu-kfd-1.img"}));
  EXPECT_EQ(*store->dump_of_index(), DumpId{5});
  const auto runs = store->vma_runs(7);
  ASSERT_TRUE(runs.ok()) << runs.error().what;
  EXPECT_TRUE(runs->is_first(0x1000));
  EXPECT_TRUE(runs->is_first(0x3000));
  EXPECT_TRUE(runs->is_last(0x3000));
  EXPECT_TRUE(runs->maps(0x20, 1));
  EXPECT_FALSE(runs->maps(0x30, 1));
  EXPECT_TRUE(store->vma_runs(8)->maps(0x30, 1)) << "of no maps nothing is known";
  EXPECT_EQ(store->vma_runs(9).error().err, ENOENT);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), "amdgpu-sluice-index.img"), 2)
      << "written once, read once";
}

}  // namespace
}  // namespace sluice::plugin
