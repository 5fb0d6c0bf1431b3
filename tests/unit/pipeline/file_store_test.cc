// SPDX-License-Identifier: MIT
// Writer and reader on real files: bytes, holes, sizes, names, and what the messages say.
#include "pipeline/store/file_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/units.h"
#include "pipeline/extents/extent_reader.h"
#include "pipeline/store/direct_io.h"
#include "pipeline/store/file_reader.h"
#include "support/lane.h"
#include "support/rng.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::Bytes;
using test::kPagesName;

constexpr std::uint64_t kChunk = 512 * kKiB;
const std::string kTemporary = std::string(kPagesName) + ".tmp";

// A reactor that starts nothing by itself: the test looks at what was asked for and answers.
class ScriptedReactor final : public Reactor {
 public:
  struct Call {
    char what;
    Op* op;
    std::uint64_t offset;
    std::uint64_t bytes;
    const std::byte* data;
  };
  void read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) override {
    calls.push_back({'r', &op, offset, buffer.size(), buffer.data()});
    last_read_is_direct = (::fcntl(fd, F_GETFL) & O_DIRECT) != 0;
  }
  void write(Op& op, int, std::span<const std::byte> buffer, std::uint64_t offset) override {
    calls.push_back({'w', &op, offset, buffer.size(), buffer.data()});
  }
  void sync_data(Op& op, int) override { calls.push_back({'s', &op, 0, 0, nullptr}); }
  void poll_readable(Op&, int, std::chrono::nanoseconds) override { ADD_FAILURE() << "a file is not polled"; }
  void poll_writable(Op&, int, std::chrono::nanoseconds) override { ADD_FAILURE() << "a file is not polled"; }
  void post(Op& op, std::int32_t) override { calls.push_back({'p', &op, 0, 0, nullptr}); }
  Result<std::size_t> wait(std::span<Completion>) override { return make_error(EIO, "not used"); }
  std::uint64_t now_ns() override { return 0; }

  std::vector<Call> calls;
  bool last_read_is_direct = false;
};

struct FileStore : public ::testing::Test {
  ImageLayout make_layout(std::uint64_t payload_bytes, std::uint64_t chunk_bytes = kChunk) {
    return std::move(ImageLayout::make(std::array{payload_bytes}, chunk_bytes)).value();
  }

  // A slot that carries `chunk`, with every unit full of data.
  Slot& carry(const ImageLayout& layout, std::uint64_t chunk) {
    Slot& slot = memory.slots[0];
    slot.chunk = layout.chunk(chunk);
    slot.zero_units.assign(static_cast<std::size_t>(div_ceil(layout.chunk_bytes(), kZeroUnitBytes)), false);
    for (std::uint32_t tag = 0; tag < kOpsPerSlot; ++tag) slot.ops[tag] = Op{&slot, tag};
    test::Rng(chunk + 1).fill(slot.buffer);
    return slot;
  }

  std::unique_ptr<FileWriter> writer(const ImageLayout& layout, const FileOptions& options) {
    auto made = FileWriter::create(dir.fd(), kPagesName, layout, 0, reactor, options);
    EXPECT_TRUE(made.ok()) << made.error().what;
    return std::move(made).value();
  }

  std::unique_ptr<FileReader> reader(const ImageLayout& layout, IoMode mode) {
    auto made = FileReader::open(dir.fd(), kPagesName, layout, 0, reactor, mode);
    EXPECT_TRUE(made.ok()) << made.error().what;
    return std::move(made).value();
  }

  // What writes were asked for.
  std::uint64_t written_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& call : reactor.calls) bytes += call.what == 'w' ? call.bytes : 0;
    return bytes;
  }

  bool has_direct() {
    const ImageLayout layout = make_layout(4096);
    return FileWriter::create(dir.fd(), "probe", layout, 0, reactor, {IoMode::Direct, true, false}).ok();
  }

  test::TempDir dir;
  ScriptedReactor reactor;
  test::LaneMemory memory{kChunk, 2};
};

const FileOptions kBuffered{IoMode::Buffered, true, false};

TEST_F(FileStore, TheWriterIsPrivateTemporaryAndSizedAtOnce) {
  const ImageLayout layout = make_layout(3 * kChunk);
  const auto made = writer(layout, kBuffered);
  EXPECT_EQ(dir.names(), std::vector<std::string>{kTemporary});
  struct stat status {};
  ASSERT_EQ(::stat((dir.path() + "/" + kTemporary).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), layout.file_bytes());
  EXPECT_EQ(status.st_blocks, 0);
}

TEST_F(FileStore, AWriterThatIsNotCommittedLeavesNothing) {
  const ImageLayout layout = make_layout(kChunk);
  { const auto made = writer(layout, kBuffered); }
  EXPECT_TRUE(dir.names().empty());
  {
    const auto made = writer(layout, kBuffered);
    ASSERT_TRUE(made->finish().ok());
  }
  EXPECT_TRUE(dir.names().empty()) << "finished is not committed";
}

TEST_F(FileStore, AStaleTemporaryIsReplacedAndAnOldImageStaysUntilCommit) {
  dir.write(kTemporary, Bytes(100, std::byte{7}));
  dir.write(kPagesName, Bytes(10, std::byte{1}));
  const ImageLayout layout = make_layout(kChunk);
  const auto made = writer(layout, kBuffered);
  EXPECT_EQ(dir.read(kTemporary).size(), layout.file_bytes());
  EXPECT_EQ(dir.read(kTemporary)[0], std::byte{0});
  EXPECT_EQ(dir.read(kPagesName).size(), 10U);
  ASSERT_TRUE(made->finish().ok());
  ASSERT_TRUE(made->commit().ok());
  EXPECT_EQ(dir.names(), std::vector<std::string>{kPagesName});
  EXPECT_EQ(dir.read(kPagesName).size(), layout.file_bytes());
}

// Whatever stands under its names, a dump writes into a file of its own.
TEST_F(FileStore, TheWriterWritesThroughNoLink) {
  const Bytes precious(100, std::byte{7});
  dir.write("precious", precious);
  for (const std::string& name : {kTemporary, std::string(kPagesName)})
    ASSERT_EQ(::symlinkat("precious", dir.fd(), name.c_str()), 0);
  const ImageLayout layout = make_layout(kChunk);
  const auto made = writer(layout, kBuffered);
  ASSERT_TRUE(made->finish().ok());
  ASSERT_TRUE(made->commit().ok());
  EXPECT_EQ(dir.read("precious"), precious);
  EXPECT_EQ(dir.read(kPagesName).size(), layout.file_bytes());
  EXPECT_EQ(dir.names(), (std::vector<std::string>{kPagesName, "precious"}));
}

TEST_F(FileStore, TheReaderFollowsNoLinkAndWaitsForNobody) {
  const ImageLayout layout = make_layout(kChunk);
  dir.write("whole", Bytes(layout.file_bytes()));
  ASSERT_EQ(::symlinkat("whole", dir.fd(), kPagesName), 0);
  EXPECT_EQ(FileReader::open(dir.fd(), kPagesName, layout, 0, reactor, IoMode::Buffered).error().err, EINVAL);
  ASSERT_EQ(::unlinkat(dir.fd(), kPagesName, 0), 0);
  ASSERT_EQ(::mkfifoat(dir.fd(), kPagesName, 0600), 0);
  EXPECT_EQ(FileReader::open(dir.fd(), kPagesName, layout, 0, reactor, IoMode::Buffered).error().err, EINVAL);
}

const FileOptions kReuse{IoMode::Buffered, true, false, true};

TEST_F(FileStore, ReuseWritesIntoTheFileThatIsThereZerosToo) {
  const ImageLayout layout = make_layout(2 * kChunk);
  dir.write(kPagesName, Bytes(5 * kChunk, std::byte{7}));
  ASSERT_EQ(::chmod((dir.path() + "/" + kPagesName).c_str(), 0600), 0);
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat((dir.path() + "/" + kPagesName).c_str(), &before), 0);
  const auto made = writer(layout, kReuse);
  EXPECT_TRUE(made->reused());
  EXPECT_EQ(dir.names(), std::vector<std::string>{kTemporary});
  Slot& slot = carry(layout, 1);
  slot.zero_units.assign(slot.zero_units.size(), true);
  made->begin(slot);
  ASSERT_EQ(reactor.calls.size(), 1U);
  EXPECT_EQ(reactor.calls[0].what, 'w');
  EXPECT_EQ(reactor.calls[0].bytes, kChunk);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, static_cast<std::int32_t>(kChunk)), Progress::Done);
  ASSERT_TRUE(made->finish().ok());
  ASSERT_TRUE(made->commit().ok());
  ASSERT_EQ(::stat((dir.path() + "/" + kPagesName).c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(after.st_mode & 07777U, 0600U);
  EXPECT_EQ(static_cast<std::uint64_t>(after.st_size), layout.file_bytes());
}

TEST_F(FileStore, ReuseLeavesAFileAloneThatHasASecondNameOrIsNone) {
  const ImageLayout layout = make_layout(kChunk);
  const std::string name = dir.path() + "/" + kPagesName;
  dir.write(kPagesName, Bytes(kChunk, std::byte{7}));
  ASSERT_EQ(::chmod(name.c_str(), 0600), 0);
  ASSERT_EQ(::link(name.c_str(), (dir.path() + "/copy").c_str()), 0);
  {
    const auto made = writer(layout, kReuse);
    EXPECT_FALSE(made->reused());
    ASSERT_TRUE(made->finish().ok());
    ASSERT_TRUE(made->commit().ok());
  }
  EXPECT_EQ(dir.read("copy"), Bytes(kChunk, std::byte{7}));
  ASSERT_EQ(::unlink(name.c_str()), 0);
  ASSERT_EQ(::symlink("copy", name.c_str()), 0);
  EXPECT_FALSE(writer(layout, kReuse)->reused());
  EXPECT_EQ(dir.read("copy"), Bytes(kChunk, std::byte{7}));
  ASSERT_EQ(::unlink(name.c_str()), 0);
  EXPECT_FALSE(writer(layout, kReuse)->reused()) << "there is no file at all";
}

// Of one on which somebody has a lease the kernel would let nobody open it before he has answered, or
// /proc/sys/fs/lease-break-time is over.
TEST_F(FileStore, ReuseDoesNotWaitForALease) {
  const ImageLayout layout = make_layout(kChunk);
  dir.write(kPagesName, Bytes(kChunk, std::byte{7}));
  const UniqueFd his(::open((dir.path() + "/" + kPagesName).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::fchmod(his.get(), 0600), 0);
  ASSERT_EQ(::signal(SIGIO, SIG_IGN), SIG_DFL);  // by which the kernel asks him
  if (::fcntl(his.get(), F_SETLEASE, F_WRLCK) != 0) GTEST_SKIP() << "no leases here";
  EXPECT_FALSE(writer(layout, kReuse)->reused());
  EXPECT_NE(::fcntl(his.get(), F_GETLEASE), F_WRLCK) << "he has been asked, and has not answered";
  ASSERT_EQ(::fcntl(his.get(), F_SETLEASE, F_UNLCK), 0);
  EXPECT_EQ(dir.read(kPagesName), Bytes(kChunk, std::byte{7}));
}

// Somebody else may hold it open, and would read what is written.
TEST_F(FileStore, ReuseLeavesAFileAloneThatOthersMayHaveOpened) {
  const ImageLayout layout = make_layout(kChunk);
  const std::string name = dir.path() + "/" + kPagesName;
  dir.write(kPagesName, Bytes(kChunk, std::byte{7}));
  for (const mode_t mode : {0640U, 0604U, 0660U}) {
    ASSERT_EQ(::chmod(name.c_str(), mode), 0);
    EXPECT_FALSE(writer(layout, kReuse)->reused()) << mode;
  }
  ASSERT_EQ(::chmod(name.c_str(), 0600), 0);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  constexpr uid_t kSomebody = 12345;
  ASSERT_EQ(::chown(name.c_str(), kSomebody, kSomebody), 0);
  EXPECT_FALSE(writer(layout, kReuse)->reused());
  EXPECT_EQ(dir.read(kPagesName), Bytes(kChunk, std::byte{7}));
  ASSERT_EQ(::chown(name.c_str(), 0, 0), 0);
  EXPECT_TRUE(writer(layout, kReuse)->reused());
}

TEST_F(FileStore, DenseChunkIsOneWrite) {
  const ImageLayout layout = make_layout(2 * kChunk);
  const auto made = writer(layout, kBuffered);
  Slot& slot = carry(layout, 1);
  made->begin(slot);
  ASSERT_EQ(reactor.calls.size(), 1U);
  EXPECT_EQ(reactor.calls[0].what, 'w');
  EXPECT_EQ(reactor.calls[0].offset, kChunk);
  EXPECT_EQ(reactor.calls[0].bytes, kChunk);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, kChunk), Progress::Done);
}

TEST_F(FileStore, ZeroUnitsAreSkippedAndRunsGoFourAtATime) {
  const ImageLayout layout = make_layout(2 * kMiB, kMiB);
  test::LaneMemory big(kMiB, 1);
  memory = std::move(big);
  const auto made = writer(layout, kBuffered);
  Slot& slot = carry(layout, 0);
  for (std::size_t unit = 0; unit < slot.zero_units.size(); ++unit) slot.zero_units[unit] = unit % 3 == 2;
  made->begin(slot);
  ASSERT_EQ(reactor.calls.size(), kOpsPerSlot);
  std::vector<std::uint64_t> begins;
  for (std::size_t i = 0; i < reactor.calls.size(); ++i) {  // grows while completions start further runs
    const auto call = reactor.calls[i];
    EXPECT_EQ(call.data, slot.buffer.data() + call.offset);
    begins.push_back(call.offset / kZeroUnitBytes);
    const Progress progress = *made->advance(slot, *call.op, static_cast<std::int32_t>(call.bytes));
    EXPECT_EQ(progress == Progress::Done, i + 1 == reactor.calls.size()) << i;
  }
  EXPECT_EQ(begins, (std::vector<std::uint64_t>{0, 3, 6, 9, 12, 15}));
  EXPECT_EQ(written_bytes(), 11 * kZeroUnitBytes);
}

TEST_F(FileStore, AChunkOfZerosIsNotWrittenAtAll) {
  const ImageLayout layout = make_layout(2 * kChunk);
  const auto made = writer(layout, kBuffered);
  Slot& slot = carry(layout, 1);
  slot.zero_units.assign(slot.zero_units.size(), true);
  made->begin(slot);
  ASSERT_EQ(reactor.calls.size(), 1U);
  EXPECT_EQ(reactor.calls[0].what, 'p');
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, 0), Progress::Done);
  EXPECT_EQ(written_bytes(), 0U);
}

TEST_F(FileStore, WithoutHolesZerosAreWritten) {
  const ImageLayout layout = make_layout(2 * kChunk);
  const auto made = writer(layout, {IoMode::Buffered, false, false});
  Slot& slot = carry(layout, 1);
  slot.zero_units.assign(slot.zero_units.size(), true);
  made->begin(slot);
  ASSERT_EQ(reactor.calls.size(), 1U);
  EXPECT_EQ(reactor.calls[0].bytes, kChunk);
}

TEST_F(FileStore, ABufferedShortWriteGoesOnWhereItStopped) {
  const ImageLayout layout = make_layout(2 * kChunk);
  const auto made = writer(layout, kBuffered);
  Slot& slot = carry(layout, 1);
  made->begin(slot);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, 10'000), Progress::Pending);
  ASSERT_EQ(reactor.calls.size(), 2U);
  EXPECT_EQ(reactor.calls[1].offset, kChunk + 10'000);
  EXPECT_EQ(reactor.calls[1].bytes, kChunk - 10'000);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[1].op, -EINTR), Progress::Pending);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[2].op, -EAGAIN), Progress::Pending);
  EXPECT_EQ(reactor.calls[3].offset, kChunk + 10'000);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[3].op, kChunk - 10'000), Progress::Done);
}

TEST_F(FileStore, ADirectShortWriteGoesBackToTheBoundary) {
  if (!has_direct()) GTEST_SKIP() << "no direct I/O in " << dir.path();
  const ImageLayout layout = make_layout(2 * kChunk);
  const auto made = writer(layout, {IoMode::Direct, true, false});
  ASSERT_TRUE(made->direct());
  Slot& slot = carry(layout, 1);
  made->begin(slot);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, 10'000), Progress::Pending);
  const std::uint64_t resumed = reactor.calls[1].offset - kChunk;
  EXPECT_TRUE(is_aligned(resumed, 512) && resumed <= 10'000 && resumed > 10'000 - 4096) << resumed;
  EXPECT_EQ(reactor.calls[1].bytes, kChunk - resumed);
}

TEST_F(FileStore, ADirectTailIsPaddedWithZerosAndCutOff) {
  if (!has_direct()) GTEST_SKIP() << "no direct I/O in " << dir.path();
  const ImageLayout layout = make_layout(kChunk);  // the last chunk has 8 bytes
  const auto made = writer(layout, {IoMode::Direct, true, false});
  Slot& slot = carry(layout, 1);
  made->begin(slot);
  ASSERT_EQ(reactor.calls.size(), 1U);
  EXPECT_TRUE(reactor.calls[0].bytes >= 512 && reactor.calls[0].bytes <= 4096) << reactor.calls[0].bytes;
  EXPECT_TRUE(std::all_of(slot.buffer.begin() + 8,
                          slot.buffer.begin() + static_cast<long>(reactor.calls[0].bytes),
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, static_cast<std::int32_t>(reactor.calls[0].bytes)),
            Progress::Done);
  ASSERT_TRUE(made->finish().ok());
  ASSERT_TRUE(made->commit().ok());
  EXPECT_EQ(dir.read(kPagesName).size(), layout.file_bytes());
}

TEST_F(FileStore, AWriteErrorNamesFileRangeAndReason) {
  const ImageLayout layout = make_layout(2 * kChunk);
  const auto made = writer(layout, kBuffered);
  Slot& slot = carry(layout, 1);
  made->begin(slot);
  const auto progress = made->advance(slot, *reactor.calls[0].op, -ENOSPC);
  ASSERT_FALSE(progress.ok());
  EXPECT_EQ(progress.error().err, ENOSPC);
  EXPECT_EQ(progress.error().what,
            "write amdgpu-pages-1-5759.img [524288, 1048576): No space left on device");
}

TEST_F(FileStore, AWriteOfNothingIsAnErrorAndEndlessStallsAreToo) {
  const ImageLayout layout = make_layout(2 * kChunk);
  const auto made = writer(layout, kBuffered);
  Slot& slot = carry(layout, 1);
  made->begin(slot);
  EXPECT_EQ(made->advance(slot, *reactor.calls[0].op, 0).error().err, EIO);

  made->begin(slot);
  for (int i = 0; i < 1000; ++i) {
    const auto progress = made->advance(slot, *reactor.calls.back().op, -EAGAIN);
    if (progress.ok()) continue;
    EXPECT_EQ(progress.error().err, EAGAIN);
    return;
  }
  ADD_FAILURE() << "went on for ever";
}

TEST_F(FileStore, AFailedSlotComesToRestBeforeItReports) {
  const ImageLayout layout = make_layout(2 * kChunk);
  const auto made = writer(layout, kBuffered);
  Slot& slot = carry(layout, 0);
  slot.zero_units[1] = slot.zero_units[3] = slot.zero_units[5] = true;
  made->begin(slot);
  ASSERT_EQ(reactor.calls.size(), 4U);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[1].op, -EIO), Progress::Pending);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, 100), Progress::Pending) << "short, but not resumed";
  EXPECT_EQ(*made->advance(slot, *reactor.calls[2].op, -ENOSPC), Progress::Pending);
  const auto progress =
      made->advance(slot, *reactor.calls[3].op, static_cast<std::int32_t>(reactor.calls[3].bytes));
  ASSERT_FALSE(progress.ok());
  EXPECT_EQ(progress.error().err, EIO) << "the first one";
  EXPECT_NE(progress.error().what.find("[131072, 196608)"), std::string::npos) << progress.error().what;
  EXPECT_EQ(reactor.calls.size(), 4U);
}

TEST_F(FileStore, AReaderOfTheWrongSizeIsRefusedWithBothSizes) {
  dir.write(kPagesName, Bytes(100));
  const ImageLayout layout = make_layout(4096);
  const auto made = FileReader::open(dir.fd(), kPagesName, layout, 0, reactor, IoMode::Buffered);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().err, EBADMSG);
  EXPECT_NE(made.error().what.find("100"), std::string::npos);
  EXPECT_NE(made.error().what.find("4104"), std::string::npos);
}

TEST_F(FileStore, AReaderThatIsMissingOrNoFileIsRefused) {
  const ImageLayout layout = make_layout(4096);
  EXPECT_EQ(FileReader::open(dir.fd(), kPagesName, layout, 0, reactor, IoMode::Buffered).error().err, ENOENT);
  EXPECT_EQ(FileReader::open(dir.fd(), ".", layout, 0, reactor, IoMode::Buffered).error().err, EINVAL);
}

TEST_F(FileStore, HolesAreMarkedAndOnlyDataIsRead) {
  const ImageLayout layout = make_layout(2 * kChunk);
  {  // data in units 2, 3 and 6 of chunk 0 (6 only in part) and nowhere else
    const UniqueFd fd(::openat(dir.fd(), kPagesName, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(layout.file_bytes())), 0);
    Bytes data(2 * kZeroUnitBytes, std::byte{5});
    ASSERT_GT(::pwrite(fd.get(), data.data(), data.size(), 2 * kZeroUnitBytes), 0);
    ASSERT_GT(::pwrite(fd.get(), data.data(), 4096, 6 * kZeroUnitBytes + 8192), 0);
    if (::lseek(fd.get(), 0, SEEK_DATA) == 0) GTEST_SKIP() << "no holes in " << dir.path();
  }
  const auto made = reader(layout, IoMode::Buffered);
  Slot& slot = carry(layout, 0);
  made->begin(slot);
  EXPECT_EQ(slot.zero_units, (std::vector<bool>{true, true, false, false, true, true, false, true}));
  ASSERT_EQ(reactor.calls.size(), 2U);
  EXPECT_EQ(reactor.calls[0].offset, 2 * kZeroUnitBytes);
  EXPECT_EQ(reactor.calls[0].bytes, 2 * kZeroUnitBytes);
  EXPECT_EQ(reactor.calls[1].offset, 6 * kZeroUnitBytes);
  EXPECT_EQ(reactor.calls[1].bytes, kZeroUnitBytes);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[1].op, kZeroUnitBytes), Progress::Pending);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, 2 * kZeroUnitBytes), Progress::Done);

  made->begin(carry(layout, 2));  // eight bytes, a hole to the end
  EXPECT_TRUE(slot.zero_units[0]);
  EXPECT_EQ(reactor.calls.back().what, 'p');
}

// What it still had when it was opened is no hole now: without sums nobody would see it.
TEST_F(FileStore, AFileThatIsCutWhileItIsReadHasNoHoleWhereItsEndWas) {
  const ImageLayout layout = make_layout(3 * kChunk);
  {
    const UniqueFd fd(::openat(dir.fd(), kPagesName, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(layout.file_bytes())), 0);
    for (const off_t begin : {off_t{0}, static_cast<off_t>(kChunk)})
      ASSERT_EQ(::pwrite(fd.get(), "data", 4, begin), 4);
    if (::lseek(fd.get(), kZeroUnitBytes, SEEK_DATA) == kZeroUnitBytes)
      GTEST_SKIP() << "no holes in " << dir.path();
  }
  const auto made = reader(layout, IoMode::Buffered);
  Slot& first = carry(layout, 0);
  made->begin(first);
  EXPECT_EQ(*made->advance(first, *reactor.calls[0].op, static_cast<std::int32_t>(kZeroUnitBytes)),
            Progress::Done);
  ASSERT_EQ(::truncate((dir.path() + "/" + kPagesName).c_str(), 4096), 0);
  Slot& cut = carry(layout, 2);
  made->begin(cut);
  EXPECT_FALSE(cut.zero_units[0]);
  ASSERT_EQ(reactor.calls.back().what, 'r');
  EXPECT_EQ(made->advance(cut, *reactor.calls.back().op, 0).error().err, EBADMSG);
}

TEST_F(FileStore, AFileThatEndsEarlyIsNamedWithItsOffset) {
  const ImageLayout layout = make_layout(2 * kChunk);
  dir.write(kPagesName, Bytes(layout.file_bytes(), std::byte{1}));
  const auto made = reader(layout, IoMode::Buffered);
  Slot& slot = carry(layout, 1);
  made->begin(slot);
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, 4096), Progress::Pending);
  const auto progress = made->advance(slot, *reactor.calls[1].op, 0);
  ASSERT_FALSE(progress.ok());
  EXPECT_EQ(progress.error().err, EBADMSG);
  EXPECT_NE(progress.error().what.find("read amdgpu-pages-1-5759.img [528384, 1048576): the file ends early"),
            std::string::npos)
      << progress.error().what;
}

TEST_F(FileStore, ADirectReadOfTheTailAsksForAWholeUnit) {
  if (!has_direct()) GTEST_SKIP() << "no direct I/O in " << dir.path();
  const ImageLayout layout = make_layout(kChunk);
  dir.write(kPagesName, Bytes(layout.file_bytes(), std::byte{1}));
  const auto made = reader(layout, IoMode::Direct);
  Slot& slot = carry(layout, 1);
  made->begin(slot);
  EXPECT_TRUE(is_aligned(reactor.calls[0].bytes, 512)) << reactor.calls[0].bytes;
  EXPECT_EQ(*made->advance(slot, *reactor.calls[0].op, 8), Progress::Done);

  made->begin(slot);  // cut short behind our back: found, not looped over
  for (int i = 0; i < 1000; ++i) {
    const auto progress = made->advance(slot, *reactor.calls.back().op, 4);
    if (progress.ok()) continue;
    EXPECT_EQ(progress.error().err, EBADMSG);
    return;
  }
  ADD_FAILURE() << "went on for ever";
}

TEST_F(FileStore, ChunksBelowTheAlignmentAreBuffered) {
  const ImageLayout layout = make_layout(4096, 256);
  EXPECT_FALSE(writer(layout, {IoMode::Auto, true, false})->direct());
  const auto refused =
      FileWriter::create(dir.fd(), kPagesName, layout, 0, reactor, {IoMode::Direct, true, false});
  EXPECT_EQ(refused.error().err, EINVAL);
  EXPECT_EQ(check_direct_io(dir.fd(), 256).error().err, EINVAL);
  EXPECT_TRUE(dir.names().empty());
  EXPECT_EQ(check_direct_io(dir.fd(), kMiB).ok(), has_direct());
}

// Chunks that are in the page cache are read from there, the others directly; looking warms nothing.
TEST_F(FileStore, AutoReadsEachChunkWhereItIs) {
  if (!has_direct()) GTEST_SKIP() << "no direct I/O in " << dir.path();
  constexpr std::uint64_t kChunks = 128;
  const ImageLayout layout = make_layout(kChunks * kChunk - kHeaderBytes);
  dir.write(kPagesName, Bytes(layout.file_bytes(), std::byte{1}));
  const auto reads_directly = [&](FileReader& from, std::uint64_t chunk) {
    from.begin(carry(layout, chunk));
    return reactor.last_read_is_direct;
  };
  EXPECT_FALSE(reads_directly(*reader(layout, IoMode::Auto), 3));
  EXPECT_TRUE(reads_directly(*reader(layout, IoMode::Direct), 3));
  EXPECT_FALSE(reads_directly(*reader(layout, IoMode::Buffered), 3));

  const UniqueFd fd(::openat(dir.fd(), kPagesName, O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::fsync(fd.get()), 0);
  // The second half leaves the cache; whole large folios do, so chunks at the border are not asked for.
  constexpr std::uint64_t kHalf = kChunks / 2 * kChunk;
  ASSERT_EQ(::posix_fadvise(fd.get(), kHalf, kHalf, POSIX_FADV_DONTNEED), 0);
  const std::size_t bytes = layout.file_bytes();
  void* const map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  std::vector<unsigned char> state(div_ceil(bytes, static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))));
  const auto resident = [&] {
    EXPECT_EQ(::mincore(map, bytes, state.data()), 0);
    return std::count_if(state.begin(), state.end(), [](unsigned char s) { return (s & 1U) != 0; });
  };
  const auto before = resident();
  if (before == static_cast<std::ptrdiff_t>(state.size())) GTEST_SKIP() << "this file system keeps its pages";
  const auto from = reader(layout, IoMode::Auto);
  EXPECT_TRUE(from->direct());
  EXPECT_FALSE(reads_directly(*from, 1));
  Slot& cached = memory.slots[0];
  EXPECT_TRUE(from->busy()) << "one chunk at a time comes from the cache";
  EXPECT_EQ(from->advance(cached, cached.op(), kChunk).value(), Progress::Done);
  EXPECT_FALSE(from->busy());
  EXPECT_TRUE(reads_directly(*from, kChunks - 2));
  EXPECT_EQ(resident(), before);
  ::munmap(map, bytes);
}

// Who is first reads it into the page cache; who reads it, drops what is far behind.
TEST_F(FileStore, ASharedFileIsReadThroughThePageCacheWhichKeepsItsEnd) {
  if (!has_direct()) GTEST_SKIP() << "no direct I/O in " << dir.path();
  const ImageLayout layout = make_layout(ExtentReader::kKeptBytes * 2);
  const std::uint64_t bytes = layout.file_bytes(0);
  const UniqueFd file(::openat(dir.fd(), kPagesName, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  const auto is_cached = [&](std::uint64_t offset) {
    const auto cache = PageCache::of(file.get(), bytes);
    return cache != nullptr && cache->holds(offset, offset + 1);
  };
  const ExtentMap map{{{dir.fd(), kPagesName, bytes, kPagesName, true, true}}, {{0, bytes, 0, 0}}};
  const auto open = [&](IoMode mode) {
    return std::move(ExtentReader::open(map, layout, 0, reactor, FileOptions{.io_mode = mode})).value();
  };
  const auto reader = open(IoMode::Auto);
  EXPECT_FALSE(reader->direct());
  Bytes page(1);
  for (std::uint64_t i = 0; i < layout.chunk_count(); ++i) {
    Slot& slot = carry(layout, i);
    // As a disk would, of one byte.
    ASSERT_EQ(::pread(file.get(), page.data(), 1, static_cast<off_t>(slot.chunk.file_offset)), 1);
    reader->begin(slot);
    reactor.calls.clear();
  }
  EXPECT_FALSE(is_cached(0));
  EXPECT_TRUE(is_cached(layout.chunk(layout.chunk_count() - 1).file_offset));
  for (const IoMode mode : {IoMode::Uncached, IoMode::Direct}) EXPECT_TRUE(open(mode)->direct());
}

}  // namespace
}  // namespace sluice
