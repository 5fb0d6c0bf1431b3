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
#include <string>
#include <vector>

#include "images/digest.h"
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

struct ImageStore : public ::testing::Test {
  ImageStore() {
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
};

TEST_F(ImageStore, WhatIsSavedIsFramedAndEnds) {
  wanted_flags = O_WRONLY | O_CREAT | O_TRUNC;
  const std::vector<std::uint8_t> payload{'a', 'b'};
  ASSERT_TRUE(save_image("saved.img", payload, true).ok());
  std::array<char, 64> bytes{};
  EXPECT_EQ(::read(taken.at("saved.img").get(), bytes.data(), bytes.size()), 10);
  EXPECT_EQ(std::string(bytes.data(), 10), framed("ab"));
  EXPECT_EQ(::read(taken.at("saved.img").get(), bytes.data(), bytes.size()), 0);
}

TEST_F(ImageStore, AnImageIsAskedForOnceAndKept) {
  served["kept.img"] = framed("payload");
  for (int i = 0; i < 2; ++i) {
    const auto payload = load_image("kept.img");
    ASSERT_TRUE(payload.ok()) << payload.error().what;
    EXPECT_EQ(text_of(*payload), "payload");
  }
  EXPECT_EQ(asked, std::vector<std::string>{"kept.img"});
}

TEST_F(ImageStore, WhatTheStreamerHasNotIsNotThere) {
  EXPECT_EQ(load_image("none.img").error().err, ENOENT);
}

TEST_F(ImageStore, ADeadStreamerIsAnErrorOfItsOwn) {
  dies = true;
  const auto payload = load_image("any.img");
  ASSERT_FALSE(payload.ok());
  EXPECT_EQ(payload.error().err, ECONNRESET);
  EXPECT_NE(payload.error().what.find("any.img"), std::string::npos);
}

// The host has no descriptors left, for example.
TEST_F(ImageStore, AStreamerThatLivesIsNotCalledDead) {
  refuses = true;
  const auto payload = load_image("living.img");
  ASSERT_FALSE(payload.ok());
  EXPECT_EQ(payload.error().err, EIO);
  EXPECT_EQ(payload.error().topic, Topic::Said);
  EXPECT_NE(payload.error().what.find("CRIU's lines before this one say why"), std::string::npos);
}

// The host would tell its log of it, whichever thread asks.
TEST_F(ImageStore, AStreamerThatHasLeftIsNotAsked) {
  streamers.reset();
  EXPECT_EQ(load_image("left.img").error().err, ECONNRESET);
  EXPECT_TRUE(asked.empty());
}

// The streamer would end of it: it has sent the file.
TEST_F(ImageStore, WhatCouldNotBeReadIsNotAskedForAgain) {
  served["cut.img"] = framed("payload").substr(0, 12);
  EXPECT_EQ(load_image("cut.img").error().err, EBADMSG);
  served["cut.img"] = framed("payload");
  EXPECT_EQ(load_image("cut.img").error().err, EBADMSG);
  EXPECT_EQ(asked, std::vector<std::string>{"cut.img"});
}

TEST_F(ImageStore, ALengthThatIsNotTheStreamsIsDamage) {
  served["short.img"] = framed("payload").substr(0, 12);
  served["long.img"] = framed("payload") + "x";
  served["empty.img"] = "";
  for (const char* name : {"short.img", "long.img", "empty.img"})
    EXPECT_EQ(load_image(name).error().err, EBADMSG) << name;
}

// What comes is kept until the end: a stream has no length that could be asked for.
TEST_F(ImageStore, AnImageThatDoesNotEndIsRefusedAtItsBound) {
  served["endless.img"] = framed("payload");
  EXPECT_TRUE(load_stream("endless.img", served["endless.img"].size()).ok());
  const auto payload = load_stream("endless.img", served["endless.img"].size() - 1);
  ASSERT_FALSE(payload.ok());
  EXPECT_EQ(payload.error().err, EBADMSG);
  EXPECT_NE(payload.error().what.find("endless.img is larger than"), std::string::npos);
}

TEST_F(ImageStore, AnIndexOfTinyPartsTakesBoundedMemory) {
  const auto parse = [](std::size_t fields) {
    return parse_index(with_digest(test::with_unknown_fields({}, fields), MessageKind::StreamIndex)).ok();
  };
  EXPECT_TRUE(parse(test::kFieldsThatFit));
  EXPECT_FALSE(parse(test::kFieldsThatDoNot));
}

TEST_F(ImageStore, AnIndexWithHalfAnIdIsDamage) {
  // dump_id (1005, bytes; proto/sluice-stream.proto), of two bytes.
  const std::vector<std::uint8_t> half = {0xea, 0x3e, 2, 0x12, 0x34};
  const auto index = parse_index(with_digest(half, MessageKind::StreamIndex));
  ASSERT_FALSE(index.ok());
  EXPECT_EQ(index.error().err, EBADMSG);
  EXPECT_NE(index.error().what.find("has no dump's id"), std::string::npos) << index.error().what;
}

// The index is kept like every image: one test has one.
TEST_F(ImageStore, TheIndexTellsWhatThereIs) {
  wanted_flags = O_WRONLY | O_CREAT | O_TRUNC;
  ASSERT_TRUE(save_index({{"amdgpu-renderD-3.img", "amdgpu-kfd-2.img", "amdgpu-kfd-1.img"},
                          {{7, {{0x1000, 0x10}, {0x3000, 0x20}}}, {8, {}}},
                          DumpId{5}})
                  .ok());
  std::array<char, 256> bytes{};
  const ssize_t got = ::read(taken.at("amdgpu-sluice-index.img").get(), bytes.data(), bytes.size());
  ASSERT_GT(got, 8);
  served["amdgpu-sluice-index.img"] = std::string(bytes.data(), static_cast<std::size_t>(got));
  wanted_flags = O_RDONLY;
  const auto kfd = kfd_images();
  ASSERT_TRUE(kfd.ok()) << kfd.error().what;
  EXPECT_EQ(*kfd, (std::vector<std::string>{"amdgpu-kfd-1.img", "amdgpu-kfd-2.img"}));
  EXPECT_EQ(*render_images(), std::vector<std::string>{"amdgpu-renderD-3.img"});
  EXPECT_EQ(*dump_of_stream(), DumpId{5});
  const auto runs = map_runs_of_stream(7);
  ASSERT_TRUE(runs.ok()) << runs.error().what;
  EXPECT_TRUE(runs->is_first(0x1000));
  EXPECT_TRUE(runs->is_first(0x3000));
  EXPECT_TRUE(runs->is_last(0x3000));
  EXPECT_TRUE(runs->maps(0x20, 1));
  EXPECT_FALSE(runs->maps(0x30, 1));
  EXPECT_TRUE(map_runs_of_stream(8)->maps(0x30, 1)) << "of no maps nothing is known";
  EXPECT_EQ(map_runs_of_stream(9).error().err, ENOENT);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), "amdgpu-sluice-index.img"), 2)
      << "written once, read once";
}

}  // namespace
}  // namespace sluice::plugin
