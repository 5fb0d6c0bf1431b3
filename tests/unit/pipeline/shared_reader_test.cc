// SPDX-License-Identifier: MIT
// One reader for several lanes: what the disk is asked for, and what lanes do that get nothing from it.
#include "pipeline/extents/shared_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pipeline/extents/extent_source.h"
#include "support/forwarding_reactor.h"
#include "support/lane.h"
#include "support/memory_copy.h"
#include "support/rng.h"
#include "support/serial_writer.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::BoList;
using test::Bytes;
using test::ReactorKind;

constexpr std::uint64_t kBlock = 256 * kKiB;
constexpr std::uint64_t kFourBlocks = 4 * kBlock;

// What a disk does with the reads of all reactors.
struct Disk {
  std::atomic<unsigned> reads{0};
  int fails_with = 0;     // each read
  std::int32_t most = 0;  // bytes that come at once; 0: all
  bool breaks = false;    // the ring, at its second wait()
  bool has_no_ring = false;
};

class DiskReactor final : public test::ForwardingReactor {
 public:
  DiskReactor(std::unique_ptr<Reactor> inner, Disk& disk)
      : ForwardingReactor(*inner), own_(std::move(inner)), disk_(disk) {}
  void read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) override {
    ++disk_.reads;
    if (disk_.fails_with != 0) return post(op, -disk_.fails_with);
    if (disk_.most != 0) buffer = buffer.first(static_cast<std::size_t>(disk_.most));
    ForwardingReactor::read(op, fd, buffer, offset);
  }
  // A ring that broke has operations in flight; this one's must end.
  ~DiskReactor() override {
    std::array<Completion, 8> done;
    if (own_->in_flight() > 0) (void)::eventfd_write(polled_, 1);
    while (own_->in_flight() > 0) (void)own_->wait(done);
  }
  void poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) override {
    polled_ = fd;
    ForwardingReactor::poll_readable(op, fd, timeout);
  }
  Result<std::size_t> wait(std::span<Completion> out) override {
    auto done = ForwardingReactor::wait(out);
    if (disk_.breaks && waits_++ > 0) return make_error(EIO, "the ring broke");
    return done;
  }

 private:
  std::unique_ptr<Reactor> own_;
  Disk& disk_;
  unsigned waits_ = 0;
  int polled_ = -1;
};

class DiskWorld final : public LaneWorld {
 public:
  explicit DiskWorld(Disk& disk) : disk_(disk) {}
  Result<std::unique_ptr<Reactor>> make_reactor(unsigned entries, std::span<std::byte> /*arena*/,
                                                std::string& /*note*/) override {
    if (disk_.has_no_ring) return make_error(ENOMEM, "no ring");
    return std::unique_ptr<Reactor>(
        std::make_unique<DiskReactor>(test::make_reactor_of(ReactorKind::Threads, entries), disk_));
  }

 private:
  Disk& disk_;
};

class SharedReaderTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kFileBytes = 3 * kBlock + 5000;

  void SetUp() override {
    bytes_.resize(kFileBytes);
    test::Rng(1).fill(bytes_);
    dir_.write("shared", bytes_);
    fd_.reset(::openat(dir_.fd(), "shared", O_RDONLY | O_CLOEXEC));
    event_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  std::unique_ptr<SharedReader> start() {
    return std::move(SharedReader::start(world_, kBlock, kFourBlocks)).value();
  }
  // As a lane does; empty: it has to read for itself.
  Bytes take(SharedReader& reader, const SharedReader::File& file, std::uint64_t offset,
             std::size_t bytes) const {
    SharedReader::Piece piece = reader.get(file, offset);
    if (!piece) return {};
    while (piece.waits(event_.get())) {
      pollfd wait{event_.get(), POLLIN, 0};
      EXPECT_EQ(TEMP_FAILURE_RETRY(::poll(&wait, 1, -1)), 1);
      eventfd_t ignored = 0;
      (void)::eventfd_read(event_.get(), &ignored);
    }
    Bytes taken(bytes);
    taken.resize(piece.copy(offset, taken));
    return taken;
  }
  Bytes part(std::uint64_t offset, std::size_t bytes) const {
    const auto from = bytes_.begin() + static_cast<std::ptrdiff_t>(offset);
    return {from, from + static_cast<std::ptrdiff_t>(bytes)};
  }

  test::TempDir dir_;
  Disk disk_;
  DiskWorld world_{disk_};
  Bytes bytes_;
  UniqueFd fd_;
  UniqueFd event_;
};

TEST_F(SharedReaderTest, TheDiskReadsABlockOnceForAllLanes) {
  const auto reader = start();
  const SharedReader::File* const file = reader->add(fd_.get());
  const UniqueFd again(::openat(dir_.fd(), "shared", O_RDONLY | O_CLOEXEC));
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(reader->add(again.get()), file);
  for (unsigned lane = 0; lane < 3; ++lane)
    for (std::uint64_t at = 0; at < kFileBytes; at += kBlock) {
      const auto bytes = static_cast<std::size_t>(std::min(kBlock, kFileBytes - at));
      EXPECT_EQ(take(*reader, *file, at, bytes), part(at, bytes)) << at;
    }
  EXPECT_EQ(disk_.reads, 4U);
}

TEST_F(SharedReaderTest, APieceEndsWithItsBlockAndItsFile) {
  const auto reader = start();
  const SharedReader::File& file = *reader->add(fd_.get());
  EXPECT_EQ(take(*reader, file, kBlock - 100, 300), part(kBlock - 100, 100));
  EXPECT_EQ(take(*reader, file, kFileBytes - 100, 300), part(kFileBytes - 100, 100));
  EXPECT_FALSE(reader->get(file, kFileBytes));
}

TEST_F(SharedReaderTest, OfTwoFilesEachHasItsOwnBlocks) {
  dir_.write("other", Bytes(kBlock, std::byte{7}));
  const UniqueFd other(::openat(dir_.fd(), "other", O_RDONLY | O_CLOEXEC));
  const auto reader = start();
  const SharedReader::File& file = *reader->add(fd_.get());
  EXPECT_EQ(take(*reader, *reader->add(other.get()), 0, 10), Bytes(10, std::byte{7}));
  EXPECT_EQ(take(*reader, file, 0, 10), part(0, 10));
}

TEST_F(SharedReaderTest, ALaneThatLagsByAllBlocksHasTheDiskReadAgain) {
  Bytes longer(8 * kBlock);
  test::Rng(2).fill(longer);
  dir_.write("longer", longer);
  const UniqueFd fd(::openat(dir_.fd(), "longer", O_RDONLY | O_CLOEXEC));
  const auto reader = start();
  const SharedReader::File& file = *reader->add(fd.get());
  for (std::uint64_t block = 0; block < 8; ++block) (void)take(*reader, file, block * kBlock, 1);
  EXPECT_EQ(disk_.reads, 8U);
  EXPECT_EQ(take(*reader, file, 7 * kBlock, 1), Bytes(1, longer[7 * kBlock]));
  EXPECT_EQ(disk_.reads, 8U) << "the newest are kept";
  EXPECT_EQ(take(*reader, file, 0, 1), Bytes(1, longer[0]));
  EXPECT_EQ(disk_.reads, 9U);
}

// Nobody waits for a lane that keeps what it uses.
TEST_F(SharedReaderTest, ABlockInUseStaysAndOthersReadForThemselves) {
  const auto reader = start();
  const SharedReader::File& file = *reader->add(fd_.get());
  std::vector<SharedReader::Piece> pieces;
  for (std::uint64_t block = 0; block < 4; ++block) pieces.push_back(reader->get(file, block * kBlock));
  dir_.write("other", Bytes(kBlock, std::byte{7}));
  const UniqueFd fd(::openat(dir_.fd(), "other", O_RDONLY | O_CLOEXEC));
  const SharedReader::File& other = *reader->add(fd.get());
  EXPECT_FALSE(reader->get(other, 0));
  EXPECT_EQ(take(*reader, file, 0, 10), part(0, 10));
  pieces.clear();
  EXPECT_EQ(take(*reader, other, 0, 10), Bytes(10, std::byte{7}));
}

TEST_F(SharedReaderTest, AReadThatFailsIsLeftToTheLanes) {
  disk_.fails_with = EIO;
  const auto reader = start();
  const SharedReader::File& file = *reader->add(fd_.get());
  EXPECT_TRUE(take(*reader, file, 0, 10).empty());
  EXPECT_TRUE(take(*reader, file, 0, 10).empty());
  EXPECT_EQ(disk_.reads, 1U) << "it is not tried again for each";
}

TEST_F(SharedReaderTest, AReadThatComesShortIsLeftToTheLanes) {
  disk_.most = 4096;
  const auto reader = start();
  EXPECT_TRUE(take(*reader, *reader->add(fd_.get()), 0, 10).empty());
}

TEST_F(SharedReaderTest, WithoutARingLanesReadForThemselves) {
  disk_.has_no_ring = true;
  const auto reader = start();
  EXPECT_TRUE(take(*reader, *reader->add(fd_.get()), 0, 10).empty());
}

TEST_F(SharedReaderTest, ARingThatBreaksLeavesNobodyWaiting) {
  disk_.breaks = true;
  const auto reader = start();
  const SharedReader::File& file = *reader->add(fd_.get());
  for (std::uint64_t block = 0; block < 4; ++block) {
    const Bytes taken = take(*reader, file, block * kBlock, 10);
    if (!taken.empty()) {
      EXPECT_EQ(taken, part(block * kBlock, 10));
    }
  }
  EXPECT_FALSE(reader->get(file, 0)) << "nothing more is read";
}

TEST_F(SharedReaderTest, TheReaderEndsWhileTheDiskReads) {
  auto reader = start();
  const SharedReader::File& file = *reader->add(fd_.get());
  for (std::uint64_t block = 0; block < 4; ++block) (void)reader->get(file, block * kBlock);
  reader.reset();
  EXPECT_LE(disk_.reads, 4U);
}

TEST_F(SharedReaderTest, LanesHaveOneReaderUntilTheLastLetsGo) {
  SharedReaders readers;
  std::shared_ptr<SharedReader> first = readers.get(world_, kBlock, kFourBlocks);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(readers.get(world_, kBlock, kFourBlocks), first);
  const SharedReader::File* const file = first->add(fd_.get());
  (void)take(*first, *file, 0, 10);
  first.reset();
  const std::shared_ptr<SharedReader> second = readers.get(world_, kBlock, kFourBlocks);
  (void)take(*second, *second->add(fd_.get()), 0, 10);
  EXPECT_EQ(disk_.reads, 2U);
}

// ---- Lanes

// A lane's own reads come through another reactor, so that the disk counts those of the reader.
class LanesTest : public SharedReaderTest {
 protected:
  void SetUp() override {
    SharedReaderTest::SetUp();
    bos_.emplace_back(5 * kBlock);
    bos_.emplace_back(kBlock + 12345);
    test::Rng rng(3);
    for (Bytes& bo : bos_) rng.fill(bo);
    file_ = test::serial_file(bos_);
    dir_.write(test::kPagesName, file_);
    layout_ =
        std::make_unique<ImageLayout>(std::move(ImageLayout::make(test::sizes_of(bos_), kBlock)).value());
  }
  // Restores all from the shared file, into BOs of its own.
  Result<void> restore(SharedReader* reader, std::uint64_t fails_at, BoList& into) const {
    into.clear();
    for (const Bytes& bo : bos_) into.emplace_back(bo.size());
    test::TestWorld world(ReactorKind::Threads);
    const auto lane = test::make_lane(*layout_, 3, world);
    const ExtentMap map{{{dir_.fd(), test::kPagesName, file_.size(), test::kPagesName, false, true}},
                        {{0, file_.size(), 0, 0}}};
    ExtentSource source({map}, *layout_, lane->reactor(), FileOptions{.reader = reader});
    test::MemoryCopy copy(Direction::Restore, *layout_, lane->reactor(), into);
    SumTable sums = test::serial_sums(bos_, kBlock);
    SLUICE_TRY_ASSIGN(const auto checksum,
                      make_checksum(*lane, Direction::Restore, {&sums, 1}, ChecksumOptions{}, nullptr, 0));
    std::uint64_t done = 0;
    SLUICE_TRY(lane->run(
        Route{&copy, checksum.get(), &source}.towards(Direction::Restore),
        [&done](std::uint64_t so_far, std::uint64_t) { done = so_far; }, [&] { return done >= fails_at; }));
    return {};
  }
  // Lanes that run at once, the first of which fails after so many chunks. Returns how many have all bytes.
  unsigned restore_all(unsigned lanes, std::uint64_t first_fails_at = UINT64_MAX) {
    SharedReaders readers;
    std::vector<BoList> bos(lanes);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < lanes; ++i)
      threads.emplace_back([&, i] {
        const auto reader = readers.get(world_, kBlock, kFourBlocks);
        const auto done = restore(reader.get(), i == 0 ? first_fails_at : UINT64_MAX, bos[i]);
        EXPECT_EQ(done.ok(), i > 0 || first_fails_at == UINT64_MAX);
      });
    for (std::thread& thread : threads) thread.join();
    return static_cast<unsigned>(std::count(bos.begin(), bos.end(), bos_));
  }

  BoList bos_;
  Bytes file_;
  std::unique_ptr<ImageLayout> layout_;
};

TEST_F(LanesTest, ALaneAloneGetsAllFromTheReader) {
  EXPECT_EQ(restore_all(1), 1U);
  EXPECT_EQ(disk_.reads, layout_->chunk_count());
}

TEST_F(LanesTest, LanesThatRunAtOnceEachGetAll) {
  EXPECT_EQ(restore_all(6), 6U);
}

TEST_F(LanesTest, ALaneThatFailsDelaysNobody) {
  EXPECT_EQ(restore_all(4, 2), 3U);
}

TEST_F(LanesTest, EachReadsForItselfWhatTheReaderCannotGive) {
  const auto with = [this](auto&& change) {
    disk_.reads = 0;
    disk_.fails_with = 0, disk_.most = 0, disk_.breaks = disk_.has_no_ring = false;
    change();
    EXPECT_EQ(restore_all(3), 3U);
  };
  with([this] { disk_.fails_with = EIO; });
  with([this] { disk_.most = 4096; });
  with([this] { disk_.breaks = true; });
  with([this] { disk_.has_no_ring = true; });
}

}  // namespace
}  // namespace sluice
