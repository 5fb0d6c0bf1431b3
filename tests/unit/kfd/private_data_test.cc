// SPDX-License-Identifier: MIT
// The private data of a checkpoint: found out, read and edited, and refused where it is not what was counted.
#include "kfd/records/private_data.h"

#include <gtest/gtest.h>

#include <cstring>
#include <iterator>
#include <random>

namespace sluice::kfd {
namespace {

constexpr std::uint32_t kFirstGpu = 0x2000;
constexpr std::size_t kMappedAt = 12;

// Private data as drivers lay them out, and what belongs to them. Each BO has a handle of its own and is
// mapped on the first GPU.
class PrivData {
 public:
  PrivData(std::size_t gpus, std::size_t bos, std::size_t record_bytes) : record_bytes_(record_bytes) {
    bytes_.resize(8 + 8 * gpus);
    bytes_[0] = 1;
    for (std::size_t i = 0; i < gpus; i++)
      owners_.gpu_ids.push_back(kFirstGpu + static_cast<std::uint32_t>(i));
    for (std::size_t i = 0; i < bos; i++) {
      std::vector<std::uint8_t> record(record_bytes);
      put(record, 8, static_cast<std::uint32_t>(i + 1));
      put(record, kMappedAt, kFirstGpu);
      append(record);
      owners_.bos.push_back({kFirstGpu, false});
    }
  }
  PrivData& queue(std::uint32_t mqd, std::uint32_t ctl_stack, std::uint32_t copies = 1) {
    std::vector<std::uint8_t> record(120);
    put(record, 64, kFirstGpu);
    put(record, 108, ctl_stack);
    put(record, 112, mqd);
    record.resize(120 + copies * (mqd + ctl_stack), 0xA5);
    return object(record);
  }
  PrivData& event() {
    std::vector<std::uint8_t> record(64);
    record[0] = 1;
    return object(record);
  }
  PrivData& svm_range() {
    std::vector<std::uint8_t> record(24 + 8 * (4 + owners_.gpu_ids.size()));
    record[0] = 2;
    return object(record);
  }
  // NO_ACCESS for a GPU, at the end of the range before.
  PrivData& no_access(std::uint32_t gpu_id) {
    std::vector<std::uint8_t> attribute(8);
    attribute[0] = 4;
    put(attribute, 4, gpu_id);
    append(attribute);
    return *this;
  }
  // Another GPU that the first process never saw.
  PrivData& also_sees(std::uint32_t gpu_id) {
    bytes_.insert(bytes_.begin() + static_cast<std::ptrdiff_t>(8 + 8 * owners_.gpu_ids.size()), 8, 0);
    owners_.gpu_ids.push_back(gpu_id);
    return *this;
  }
  // A word of a BO's record.
  PrivData& set(std::size_t bo, std::size_t at, std::uint32_t value) {
    put(bytes_, 8 + 8 * owners_.gpu_ids.size() + bo * record_bytes_ + at, value);
    return *this;
  }
  PrivData& userptr(std::size_t bo) {
    owners_.bos[bo].is_userptr = true;
    return set(bo, 0, 0x7f001000);
  }

  const std::vector<std::uint8_t>& bytes() const { return bytes_; }
  const PrivateOwners& owners() const { return owners_; }
  Result<PrivateData> read(std::uint32_t record_bytes = 0) const {
    return PrivateData::read(bytes_, owners_, record_bytes);
  }
  // 0: not found.
  std::uint32_t found() const {
    const auto data = read();
    return data ? data->bo_record_bytes() : 0;
  }

 private:
  static void put(std::vector<std::uint8_t>& to, std::size_t at, std::uint32_t value) {
    std::memcpy(to.data() + at, &value, sizeof value);
  }
  void append(const std::vector<std::uint8_t>& record) {
    bytes_.insert(bytes_.end(), record.begin(), record.end());
  }
  PrivData& object(const std::vector<std::uint8_t>& record) {
    append(record);
    owners_.objects++;
    return *this;
  }

  std::size_t record_bytes_;
  std::vector<std::uint8_t> bytes_;
  PrivateOwners owners_;
};

// Linux's, AMD's, and some that no driver has yet.
constexpr std::uint32_t kRecords[] = {80, 104, 144, 272, 296, 536, 4096};

TEST(BoRecordBytes, are_found_for_every_driver) {
  for (const std::uint32_t record : kRecords) {
    for (const std::size_t bos : {1U, 2U, 159U}) {
      for (const std::size_t gpus : {1U, 2U, 8U, 16U}) {
        SCOPED_TRACE(testing::Message() << record << ' ' << bos << " BOs " << gpus << " GPUs");
        EXPECT_EQ(PrivData(gpus, bos, record).found(), record);
        EXPECT_EQ(PrivData(gpus, bos, record)
                      .userptr(bos - 1)
                      .queue(512, 8192)
                      .queue(4096, 0)
                      .event()
                      .event()
                      .svm_range()
                      .found(),
                  record);
        EXPECT_EQ(PrivData(gpus, bos, record).queue(512, 8192, 8).event().found(), record);
      }
    }
  }
}

// A public log of an MI300X under KFD 1.18 has these numbers.
TEST(BoRecordBytes, are_found_in_a_survey_of_amds_driver) {
  EXPECT_EQ(PrivData(8, 159, 296).queue(2048 * 8, 4096).queue(512, 0).event().found(), 296U);
}

// The answer is right, or there is none.
TEST(BoRecordBytes, are_never_found_wrong_in_random_surveys) {
  std::mt19937 random(50);
  const auto below = [&](std::uint32_t most) { return static_cast<std::uint32_t>(random() % most); };
  std::size_t found = 0;
  constexpr std::size_t kSurveys = 2000;
  for (std::size_t i = 0; i < kSurveys; ++i) {
    const std::uint32_t record = kRecords[below(5)];
    const std::size_t gpus = 1 + below(16), bos = 1 + below(40);
    PrivData data(gpus, bos, record);
    for (std::size_t bo = 0; bo < bos; ++bo) {
      const std::uint32_t mapped = below(static_cast<std::uint32_t>(gpus) + 1);
      data.set(bo, kMappedAt, 0);
      for (std::uint32_t gpu = 0; gpu < mapped; ++gpu) data.set(bo, kMappedAt + 4 * gpu, kFirstGpu + gpu);
      if (below(4) == 0) data.userptr(bo);
    }
    const std::uint32_t copies = below(2) == 0 ? 1 : 8;
    for (std::uint32_t n = below(4); n > 0; --n) data.queue(512 << below(3), 4096 * below(3), copies);
    for (std::uint32_t n = below(20); n > 0; --n) data.event();
    for (std::uint32_t n = below(5); n > 0; --n) data.svm_range();
    const std::uint32_t answer = data.found();
    EXPECT_TRUE(answer == 0 || answer == record) << answer << ", not " << record;
    found += answer != 0 ? 1 : 0;
  }
  EXPECT_GT(found, kSurveys * 99 / 100);
}

TEST(BoRecordBytes, stay_unknown_when_nothing_fits) {
  EXPECT_EQ(PrivData(2, 0, 80).event().found(), 0U);
  EXPECT_EQ(PrivateData::read({}, PrivData(2, 3, 80).owners()).error().err, EBADMSG);
  PrivateOwners one_event = PrivData(2, 3, 80).owners();
  one_event.objects = 1;
  EXPECT_FALSE(PrivateData::read(PrivData(2, 3, 80).bytes(), one_event).ok());
  const PrivData whole = PrivData(1, 1, 80).queue(512, 64);
  std::vector<std::uint8_t> cut = whole.bytes();
  while (!cut.empty()) {
    cut.pop_back();
    EXPECT_FALSE(PrivateData::read(cut, whole.owners()).ok()) << cut.size();
  }
}

// Each word of the beginning is looked at.
TEST(BoRecordBytes, stay_unknown_when_a_record_does_not_begin_as_one) {
  EXPECT_EQ(PrivData(2, 3, 80).userptr(1).found(), 80U);
  EXPECT_EQ(PrivData(2, 3, 80).set(1, 0, 0x1000).found(), 0U);        // an address of a BO without one
  EXPECT_EQ(PrivData(2, 3, 80).set(1, 8, 0x80000000).found(), 0U);    // no handle
  EXPECT_EQ(PrivData(2, 3, 80).set(1, 8, 1).found(), 0U);             // another BO's handle
  EXPECT_EQ(PrivData(2, 3, 80).set(1, kMappedAt, 0x77).found(), 0U);  // nobody's GPU
  EXPECT_EQ(PrivData(2, 3, 80).set(1, 16, kFirstGpu + 1).found(), 80U);
  EXPECT_EQ(PrivData(2, 3, 80).set(1, 16, kFirstGpu).found(), 0U);  // one GPU twice
}

TEST(BoRecordBytes, stay_unknown_when_an_object_is_none) {
  const PrivData whole = PrivData(1, 1, 80).event().queue(64, 8).svm_range();
  const std::size_t event = 8 + 8 + 80, queue = event + 64;
  const auto with = [&](std::size_t at, std::uint8_t value) {
    std::vector<std::uint8_t> bytes = whole.bytes();
    bytes[at] = value;
    return PrivateData::read(bytes, whole.owners()).ok();
  };
  EXPECT_TRUE(with(event, 1));
  EXPECT_FALSE(with(event, 3));          // no type
  EXPECT_FALSE(with(event + 4, 1));      // not cleared
  EXPECT_FALSE(with(event + 19, 0x80));  // no id
  EXPECT_FALSE(with(event + 28, 2));     // neither signaled nor not
  EXPECT_FALSE(with(queue + 64, 1));     // nobody's GPU
}

// Records of 80 bytes, or of 144 and one event that is in the other's queue.
TEST(BoRecordBytes, stay_unknown_when_two_sizes_fit) {
  const PrivData data = PrivData(1, 1, 80).queue(64, 8);
  std::vector<std::uint8_t> bytes = data.bytes();
  const std::size_t state = bytes.size() - 64;
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(state), bytes.end(), 0);
  EXPECT_TRUE(PrivateData::read(bytes, data.owners()).ok());
  bytes[state] = 1;
  EXPECT_FALSE(PrivateData::read(bytes, data.owners()).ok());
  EXPECT_EQ(PrivateData::read(bytes, data.owners(), 80)->bo_record_bytes(), 80U);  // an image may say it
}

TEST(PrivateData, bos_tell_their_handles_and_the_gpus_that_map_them) {
  for (const std::uint32_t record : {80U, 104U, 272U, 296U}) {
    const std::size_t gpus = record < 272 ? 16 : 64;
    PrivData whole =
        PrivData(gpus, 3, record).event().set(0, kMappedAt, 0).set(1, kMappedAt + 4, kFirstGpu + 1);
    for (std::uint32_t gpu = 0; gpu < gpus; ++gpu) whole.set(2, kMappedAt + 4 * gpu, kFirstGpu + gpu);
    const auto data = whole.read();
    ASSERT_TRUE(data.ok()) << data.error().what;
    EXPECT_EQ(data->bo(1).handle, 2U);
    EXPECT_TRUE(data->bo(0).mapped_gpu_ids.empty());
    EXPECT_EQ(data->bo(1).mapped_gpu_ids, (std::vector<std::uint32_t>{kFirstGpu, kFirstGpu + 1}));
    EXPECT_EQ(data->bo(2).mapped_gpu_ids, whole.owners().gpu_ids);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(data->bo(i).ipc.has_value());
  }
}

// AMD's: 16 or 64 GPUs, whether it is imported, flags, the handle.
TEST(PrivateData, bos_of_amds_driver_tell_their_ipc_handles) {
  using Ipc = PrivateData::BoRecord::Ipc;
  for (const auto& [record, at] : {std::pair{104U, 12U + 64}, std::pair{296U, 12U + 256}}) {
    PrivData whole = PrivData(2, 3, record).event().set(0, at + 4, 7);
    for (std::uint32_t word = 0; word < 4; ++word) whole.set(1, at + 8 + 4 * word, 0xABC0 + word);
    whole.set(2, at, 1).set(2, at + 8 + 4 * 3, 5);
    const auto data = whole.read();
    ASSERT_TRUE(data.ok()) << data.error().what;
    EXPECT_EQ(data->bo_record_bytes(), record);
    EXPECT_EQ(data->bo(0).ipc, std::nullopt) << "flags alone are no handle";
    EXPECT_EQ(data->bo(1).ipc, (Ipc{{0xABC0, 0xABC1, 0xABC2, 0xABC3}, false}));
    EXPECT_EQ(data->bo(2).ipc, (Ipc{{0, 0, 0, 5}, true}));
    EXPECT_EQ(data->bo(1).mapped_gpu_ids, std::vector<std::uint32_t>{kFirstGpu});
  }
}

TEST(PrivateData, edited_by_nothing_it_is_the_same) {
  for (const std::uint32_t record : kRecords) {
    const PrivData whole = PrivData(2, 3, record).queue(512, 64, 2).event().svm_range();
    const auto data = whole.read();
    ASSERT_TRUE(data.ok()) << data.error().what;
    EXPECT_EQ(data->edit({}, {}), whole.bytes());
  }
}

TEST(PrivateData, records_of_bos_are_left_out) {
  for (const std::uint32_t record : kRecords) {
    const PrivData all = PrivData(2, 4, record).queue(512, 64).svm_range();
    const auto data = all.read();
    ASSERT_TRUE(data.ok());
    const std::size_t left_out[] = {0, 2};
    const auto edited = data->edit(left_out, {});
    ASSERT_EQ(edited.size(), all.bytes().size() - 2 * record);
    PrivateOwners rest_of = all.owners();
    rest_of.bos.resize(2);
    const auto rest = PrivateData::read(edited, rest_of);
    ASSERT_TRUE(rest.ok());
    EXPECT_EQ(rest->bo(0).handle, 2U);
    EXPECT_EQ(rest->bo(1).handle, 4U);
    const std::size_t every[] = {0, 1, 2, 3};
    EXPECT_EQ(data->edit(every, {}), PrivData(2, 0, record).queue(512, 64).svm_range().bytes());
  }
}

// Each has a record, and no range of memory can be reached from it.
TEST(PrivateData, gpus_that_the_process_never_saw_are_added) {
  for (const std::uint32_t record : kRecords) {
    const PrivData whole = PrivData(1, 2, record).svm_range().event().svm_range().queue(64, 8);
    const auto data = whole.read();
    ASSERT_TRUE(data.ok());
    const std::uint32_t more[] = {0x3000, 0x3001};
    const auto edited = data->edit({}, more);
    const PrivData wanted = PrivData(1, 2, record)
                                .svm_range()
                                .no_access(0x3000)
                                .no_access(0x3001)
                                .event()
                                .svm_range()
                                .no_access(0x3000)
                                .no_access(0x3001)
                                .queue(64, 8)
                                .also_sees(0x3000)
                                .also_sees(0x3001);
    EXPECT_EQ(edited, wanted.bytes());
    EXPECT_EQ(wanted.found(), record);
  }
}

TEST(PrivateData, what_was_not_counted_so_is_refused) {
  const PrivData whole = PrivData(2, 3, 80).queue(512, 64).svm_range();
  EXPECT_TRUE(whole.read(80).ok());
  for (const std::uint32_t record : {8U, 72U, 84U, 104U, 272U})
    EXPECT_FALSE(whole.read(record).ok()) << record;
  const auto expect_refused = [&](auto change) {
    PrivateOwners wrong = whole.owners();
    change(wrong);
    const auto data = PrivateData::read(whole.bytes(), wrong, 80);
    ASSERT_FALSE(data.ok());
    EXPECT_EQ(data.error().err, EBADMSG);
  };
  for (const std::size_t objects : {std::size_t{1}, std::size_t{3}, SIZE_MAX})
    expect_refused([&](PrivateOwners& wrong) { wrong.objects = objects; });
  expect_refused([](PrivateOwners& wrong) { wrong.bos.pop_back(); });
  expect_refused([](PrivateOwners& wrong) { wrong.bos.push_back({}); });
  expect_refused([](PrivateOwners& wrong) { wrong.gpu_ids.pop_back(); });
  expect_refused([](PrivateOwners& wrong) { wrong.gpu_ids.push_back(9); });
  std::vector<std::uint8_t> cut = whole.bytes();
  for (cut.pop_back(); !cut.empty(); cut.pop_back())
    EXPECT_FALSE(PrivateData::read(cut, whole.owners(), 80).ok());
}

}  // namespace
}  // namespace sluice::kfd
