// SPDX-License-Identifier: MIT
// The private data of a checkpoint: found out, read and edited, and refused where it is not what was counted.
#include "kfd/private_data.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace sluice::kfd {
namespace {

// Private data as Linux lays it out.
class PrivData {
 public:
  PrivData(std::size_t devices, std::size_t bos, std::size_t record_bytes) : devices_(devices) {
    bytes_.resize(8 + 8 * devices);
    bytes_[0] = 1;
    for (std::size_t i = 0; i < bos; i++) {
      std::vector<std::uint8_t> record(record_bytes);
      record[8] = static_cast<std::uint8_t>(i);  // idr_handle
      record[13] = 0x20;                         // mapped on GPU 0x2000
      append(record);
    }
  }
  PrivData& queue(std::uint32_t mqd, std::uint32_t ctl_stack, std::uint32_t copies = 1) {
    std::vector<std::uint8_t> record(120);
    std::memcpy(record.data() + 108, &ctl_stack, 4);
    std::memcpy(record.data() + 112, &mqd, 4);
    append(record);
    append(std::vector<std::uint8_t>(copies * (mqd + ctl_stack), 0xA5));
    return *this;
  }
  PrivData& event() {
    std::vector<std::uint8_t> record(64);
    record[0] = 1;
    return append(record);
  }
  PrivData& svm_range() {
    std::vector<std::uint8_t> record(24 + 8 * (4 + devices_));
    record[0] = 2;
    return append(record);
  }
  // NO_ACCESS for a GPU, at the end of the range before.
  PrivData& no_access(std::uint32_t gpu_id) {
    std::vector<std::uint8_t> attribute(8);
    attribute[0] = 4;
    std::memcpy(attribute.data() + 4, &gpu_id, sizeof gpu_id);
    return append(attribute);
  }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  PrivData& append(const std::vector<std::uint8_t>& record) {
    bytes_.insert(bytes_.end(), record.begin(), record.end());
    return *this;
  }
  std::size_t devices_;
  std::vector<std::uint8_t> bytes_;
};

TEST(BoRecordBytes, are_derived_for_both_kernels) {
  for (const std::uint32_t record : {80U, 272U}) {
    for (const std::size_t bos : {1U, 2U, 159U}) {
      for (const std::size_t devices : {1U, 2U, 8U}) {
        EXPECT_EQ(derive_bo_record_bytes({devices, bos, 0}, PrivData(devices, bos, record).bytes()), record);
        const auto mixed = PrivData(devices, bos, record)
                               .queue(512, 8192)
                               .queue(4096, 0)
                               .event()
                               .event()
                               .svm_range()
                               .bytes();
        EXPECT_EQ(derive_bo_record_bytes({devices, bos, 5}, mixed), record)
            << bos << " BOs " << devices << " GPUs";
        const auto partitions = PrivData(devices, bos, record).queue(512, 8192, 8).event().bytes();
        EXPECT_EQ(derive_bo_record_bytes({devices, bos, 2}, partitions), record);
      }
    }
  }
}

TEST(BoRecordBytes, stay_unknown_when_nothing_fits) {
  EXPECT_EQ(derive_bo_record_bytes({2, 0, 1}, PrivData(2, 0, 80).event().bytes()), 0U);
  EXPECT_EQ(derive_bo_record_bytes({2, 3, 0}, PrivData(2, 3, 144).bytes()), 0U);
  EXPECT_EQ(derive_bo_record_bytes({2, 3, 1}, PrivData(2, 3, 80).bytes()), 0U);
  EXPECT_EQ(derive_bo_record_bytes({2, 3, 0}, {}), 0U);
  std::vector<std::uint8_t> cut = PrivData(1, 1, 80).queue(512, 64).bytes();
  for (; !cut.empty(); cut.pop_back()) {
    const std::uint32_t record = derive_bo_record_bytes({1, 1, 1}, cut);
    EXPECT_TRUE(record == 0 || record == 80);
  }
}

TEST(PrivateData, bos_tell_their_handles_and_the_gpus_that_map_them) {
  std::vector<std::uint8_t> bytes = PrivData(2, 3, 80).event().bytes();
  const std::uint32_t gpu_ids[] = {0x2000, 0x2001};
  std::uint8_t* second = bytes.data() + 8 + 8 * 2 + 80;
  std::memcpy(second + 12, gpu_ids, sizeof gpu_ids);
  std::memset(bytes.data() + 8 + 8 * 2 + 2 * 80 + 12, 0xFF, 80 - 12);  // on all GPUs that there is room for
  const auto data = PrivateData::parse(bytes, {2, 3, 1}, 80);
  ASSERT_TRUE(data.ok()) << data.error().what;
  EXPECT_EQ(data->bo(0).handle, 0U);
  EXPECT_EQ(data->bo(1).handle, 1U);
  EXPECT_EQ(data->bo(0).mapped_gpu_ids, std::vector<std::uint32_t>{0x2000});
  EXPECT_EQ(data->bo(1).mapped_gpu_ids, (std::vector<std::uint32_t>{0x2000, 0x2001}));
  EXPECT_EQ(data->bo(2).mapped_gpu_ids.size(), (80U - 12) / 4);
}

TEST(PrivateData, edited_by_nothing_it_is_the_same) {
  for (const std::uint32_t record : {80U, 272U}) {
    const auto bytes = PrivData(2, 3, record).queue(512, 64, 2).event().svm_range().bytes();
    const auto data = PrivateData::parse(bytes, {2, 3, 3}, record);
    ASSERT_TRUE(data.ok()) << data.error().what;
    EXPECT_EQ(data->edit({}, {}), bytes);
  }
}

TEST(PrivateData, records_of_bos_are_left_out) {
  const auto all = PrivData(2, 4, 272).queue(512, 64).svm_range().bytes();
  const auto data = PrivateData::parse(all, {2, 4, 2}, 272);
  ASSERT_TRUE(data.ok());
  const std::size_t left_out[] = {0, 2};
  const auto edited = data->edit(left_out, {});
  ASSERT_EQ(edited.size(), all.size() - 2 * 272);
  const auto rest = PrivateData::parse(edited, {2, 2, 2}, 272);
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest->bo(0).handle, 1U);
  EXPECT_EQ(rest->bo(1).handle, 3U);
  const std::size_t every[] = {0, 1, 2, 3};
  EXPECT_EQ(data->edit(every, {}), PrivData(2, 0, 272).queue(512, 64).svm_range().bytes());
}

// Each has a record, and no range of memory can be reached from it.
TEST(PrivateData, gpus_that_the_process_never_saw_are_added) {
  const auto bytes = PrivData(1, 2, 80).svm_range().event().svm_range().queue(64, 8).bytes();
  const auto data = PrivateData::parse(bytes, {1, 2, 4}, 80);
  ASSERT_TRUE(data.ok());
  const std::uint32_t more[] = {0x3000, 0x3001};
  const auto edited = data->edit({}, more);
  auto wanted = PrivData(1, 0, 80)
                    .svm_range()
                    .no_access(0x3000)
                    .no_access(0x3001)
                    .event()
                    .svm_range()
                    .no_access(0x3000)
                    .no_access(0x3001)
                    .queue(64, 8)
                    .bytes();
  const auto bos = PrivData(3, 2, 80).bytes();
  wanted.erase(wanted.begin(), wanted.begin() + 8 + 8);
  wanted.insert(wanted.begin(), bos.begin(), bos.end());
  EXPECT_EQ(edited, wanted);
  EXPECT_TRUE(PrivateData::parse(edited, {3, 2, 4}, 80).ok());
}

TEST(PrivateData, what_was_not_counted_so_is_refused) {
  const auto bytes = PrivData(2, 3, 80).queue(512, 64).svm_range().bytes();
  const struct {
    PrivateCounts counts;
    std::uint32_t record_bytes;
  } cases[] = {{{2, 3, 1}, 80},        {{2, 3, 3}, 80},       {{2, 2, 2}, 80}, {{2, 4, 2}, 80},
               {{1, 3, 2}, 80},        {{3, 3, 2}, 80},       {{2, 3, 2}, 0},  {{2, 3, 2}, 272},
               {{2, SIZE_MAX, 2}, 80}, {{2, 3, SIZE_MAX}, 80}};
  for (const auto& wrong : cases) {
    const auto data = PrivateData::parse(bytes, wrong.counts, wrong.record_bytes);
    ASSERT_FALSE(data.ok()) << wrong.counts.devices << ' ' << wrong.counts.bos << ' ' << wrong.counts.objects;
    EXPECT_EQ(data.error().err, EBADMSG);
  }
  std::vector<std::uint8_t> cut = bytes;
  for (cut.pop_back(); !cut.empty(); cut.pop_back())
    EXPECT_FALSE(PrivateData::parse(cut, {2, 3, 2}, 80).ok());
}

}  // namespace
}  // namespace sluice::kfd
