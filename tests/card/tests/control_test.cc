// SPDX-License-Identifier: MIT
// Commands to the card, by line and through its mailbox.
#include "control/control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "bus_kit.h"
#include "control/mailbox.h"
#include "support/temp_dir.h"

namespace sluice::card::tests {
namespace {

class ControlTest : public testing::Test {
 protected:
  Faults faults_;
  Counters counters_;
  Bytes vram_ = Bytes(64);
  Trace trace_;
  Control control_{faults_, counters_, vram_, trace_};
};

TEST_F(ControlTest, CommandsSetFaults) {
  EXPECT_EQ(control_.run("fence hold"), "ok");
  EXPECT_EQ(faults_.fence, Faults::Fence::kHold);
  EXPECT_EQ(control_.run("fence hang"), "ok");
  EXPECT_EQ(faults_.fence, Faults::Fence::kHang);
  EXPECT_EQ(control_.run("  fence\tpass\r\n"), "ok");
  EXPECT_EQ(faults_.fence, Faults::Fence::kPass);
  EXPECT_EQ(control_.run("sdma rate 1000000"), "ok");
  EXPECT_EQ(faults_.sdma_bytes_per_s, 1000000U);
  EXPECT_EQ(control_.run("sdma fault"), "ok");
  EXPECT_TRUE(faults_.sdma_fault);
  EXPECT_EQ(control_.run("sdma hold on"), "ok");
  EXPECT_TRUE(faults_.hold_copies);
  EXPECT_EQ(control_.run("sdma hold off"), "ok");
  EXPECT_FALSE(faults_.hold_copies);
  EXPECT_EQ(control_.run("queue refuse-preemption on"), "ok");
  EXPECT_TRUE(faults_.refuse_preemption);
  EXPECT_EQ(control_.run("queue refuse-preemption off"), "ok");
  EXPECT_FALSE(faults_.refuse_preemption);
  EXPECT_EQ(control_.run("queue waves 3"), "ok");
  EXPECT_EQ(faults_.stops_with_waves, 3U);
  EXPECT_EQ(control_.run("shaders hold 400"), "ok");
  EXPECT_EQ(faults_.shader_instructions_left, 400U);
  EXPECT_EQ(control_.run("shaders go"), "ok");
  EXPECT_FALSE(faults_.shader_instructions_left.has_value());
  EXPECT_EQ(control_.run("vram lost"), "ok");
  EXPECT_EQ(vram_, Bytes(64, std::byte{0xa5}));
}

TEST_F(ControlTest, CountersAreToldByName) {
  counters_.register_reads = 12;
  counters_.sdma_bytes = std::uint64_t{1} << 40;
  counters_.queues_stopped = 3;
  const std::string answer = control_.run("counters");
  EXPECT_EQ(answer.rfind("ok register_reads=12 ", 0), 0U) << answer;
  EXPECT_NE(answer.find(" sdma_bytes=1099511627776 "), std::string::npos) << answer;
  EXPECT_NE(answer.find(" queues_stopped=3"), std::string::npos) << answer;
}

TEST_F(ControlTest, AnswerWithEveryCounterAtItsLargestFits) {
  std::fill_n(reinterpret_cast<std::uint64_t*>(&counters_), sizeof counters_ / 8, ~std::uint64_t{0});
  const std::string answer = control_.run("counters");
  EXPECT_LE(answer.size(), Control::kLongest);
  EXPECT_EQ(answer.find('\n'), std::string::npos);
}

TEST_F(ControlTest, WhatIsNoCommandChangesNothing) {
  for (const char* text : {"",
                           " ",
                           "fence",
                           "fence stop",
                           "fence hold now",
                           "sdma",
                           "sdma rate",
                           "sdma rate -1",
                           "sdma rate 1k",
                           "sdma rate 99999999999999999999",
                           "queue refuse-preemption",
                           "vram",
                           "queue refuse-preemption maybe",
                           "queue waves",
                           "queue waves on",
                           "shaders",
                           "shaders hold",
                           "shaders hold on",
                           "counters all",
                           "COUNTERS"}) {
    const std::string answer = control_.run(text);
    EXPECT_EQ(answer.rfind("error: ", 0), 0U) << text;
    EXPECT_EQ(answer.find('\n'), std::string::npos) << text;
  }
  EXPECT_EQ(faults_.fence, Faults::Fence::kPass);
  EXPECT_EQ(faults_.sdma_bytes_per_s, 0U);
  EXPECT_FALSE(faults_.sdma_fault || faults_.refuse_preemption || faults_.shader_instructions_left);
  EXPECT_EQ(vram_, Bytes(64));
}

class MailboxTest : public ControlTest {
 protected:
  std::uint32_t read32(std::uint64_t offset) {
    Bytes bytes(4);
    mailbox_.read(Bar::kRegisters, mailbox::kPage + offset, bytes);
    return value_at<std::uint32_t>(bytes, 0);
  }
  void write32(std::uint64_t offset, std::uint32_t value) {
    mailbox_.write(Bar::kRegisters, mailbox::kPage + offset, Bytes(Packed().u32(value)));
  }
  // As a program in the guest does it.
  std::string ask(const std::string& command) {
    for (std::size_t i = 0; i < command.size(); i += 4) {
      std::uint32_t word = 0;
      std::memcpy(&word, command.data() + i, std::min<std::size_t>(4, command.size() - i));
      write32(mailbox::kTextAt + i, word);
    }
    write32(mailbox::kLengthAt, static_cast<std::uint32_t>(command.size()));
    std::string answer(read32(mailbox::kLengthAt), '\0');
    for (std::size_t i = 0; i < answer.size(); i += 4) {
      const std::uint32_t word = read32(mailbox::kTextAt + i);
      std::memcpy(answer.data() + i, &word, std::min<std::size_t>(4, answer.size() - i));
    }
    return answer;
  }

  RecordingDevice gpu_;
  Mailbox mailbox_{gpu_, control_};
};

TEST_F(MailboxTest, CommandsGoThroughThePage) {
  EXPECT_EQ(read32(mailbox::kMagicAt), mailbox::kMagic);
  EXPECT_EQ(ask("sdma rate 77"), "ok");
  EXPECT_EQ(faults_.sdma_bytes_per_s, 77U);
  EXPECT_EQ(ask("counters"), control_.run("counters"));
  EXPECT_EQ(ask("nonsense"), control_.run("nonsense"));
  EXPECT_TRUE(gpu_.accesses.empty());
}

TEST_F(MailboxTest, LengthBeyondTheTextIsNoCommand) {
  write32(mailbox::kLengthAt, ~0U);
  EXPECT_EQ(read32(mailbox::kLengthAt), control_.run("").size());
  write32(0x7fc, 1);
  write32(mailbox::kPageBytes - 4, 0x01020304);
  EXPECT_EQ(read32(mailbox::kPageBytes - 4), 0x01020304U) << "the last word of the text";
}

TEST_F(MailboxTest, EverythingElseIsTheGpus) {
  const Bytes word = Packed().u32(1);
  mailbox_.write(Bar::kRegisters, mailbox::kPage - 4, word);
  mailbox_.write(Bar::kRegisters, mailbox::kPage + mailbox::kPageBytes, word);
  mailbox_.write(Bar::kRegisters, mailbox::kPage - 2, word);
  mailbox_.write(Bar::kRegisters, mailbox::kPage + mailbox::kPageBytes - 2, word);
  mailbox_.write(Bar::kDoorbells, mailbox::kPage, word);
  EXPECT_EQ(gpu_.accesses.size(), 5U);
  mailbox_.reset();
  EXPECT_EQ(gpu_.resets, 1);
}

TEST(TraceTest, RepeatedLinesAreCounted) {
  const test::TempDir directory;
  const std::string path = directory.path() + "/trace";
  Trace trace;
  trace.line("to nobody");
  ASSERT_TRUE(trace.open(path));
  for (const char* text : {"one", "two", "two", "two", "three"}) trace.line(text);
  trace.close();
  EXPECT_FALSE(trace.on());
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line.substr(line.find(' ') + 1));
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", " … 2 times more", "three"}));
  EXPECT_FALSE(trace.open(directory.path() + "/no/such/folder"));
}

}  // namespace
}  // namespace sluice::card::tests
