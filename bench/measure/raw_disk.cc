// SPDX-License-Identifier: MIT
#include "measure/raw_disk.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "measure/at_once.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kHugePageBytes = 2 * kMiB;

// Anonymous memory in huge pages if available (fewer segments for the disk), touched, with incompressible
// data.
class Buffers {
 public:
  explicit Buffers(std::uint64_t bytes) : mapped_bytes_(bytes + kHugePageBytes) {
    void* memory = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    mapped_ = memory;
    const std::uint64_t start = align_up(reinterpret_cast<std::uintptr_t>(memory), kHugePageBytes);
    data_ = static_cast<char*>(memory) + (start - reinterpret_cast<std::uintptr_t>(memory));
    (void)::madvise(data_, bytes, MADV_HUGEPAGE);
    auto* words = reinterpret_cast<std::uint64_t*>(data_);
    std::uint64_t state = 0x9e3779b97f4a7c15;
    for (std::uint64_t i = 0; i < bytes / 8; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      words[i] = state;
    }
  }
  ~Buffers() {
    if (mapped_ != nullptr) (void)::munmap(mapped_, mapped_bytes_);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  bool valid() const { return mapped_ != nullptr; }
  char* at(std::uint64_t offset) const { return data_ + offset; }

 private:
  void* mapped_ = nullptr;
  char* data_ = nullptr;
  std::uint64_t mapped_bytes_;
};

}  // namespace

const char* name_of(FillState fill) {
  return fill == FillState::New ? "new" : fill == FillState::Allocated ? "allocated" : "rewritten";
}

// One file with its thread's ring and buffers.
class RawDisk::Lane {
 public:
  Lane(const RawPlan& plan, const std::string& name)
      : plan_(plan),
        name_(name),
        blocks_(std::max<std::uint64_t>(plan.bytes_per_file / plan.block_bytes, 1)),
        buffers_(plan.block_bytes * plan.depth) {
    have_ring_ = io_uring_queue_init(plan.depth, &ring_, 0) == 0;
    if (!have_ring_ || !buffers_.valid() || !plan.registered) return;
    std::vector<iovec> vectors;
    for (std::uint32_t i = 0; i < plan.depth; ++i) vectors.push_back({buffer(i), plan.block_bytes});
    // Refused if the limit of locked memory is too small: then unregistered.
    registered_ = io_uring_register_buffers(&ring_, vectors.data(), plan.depth) == 0;
  }
  ~Lane() {
    if (have_ring_) io_uring_queue_exit(&ring_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  bool valid() const { return buffers_.valid(); }
  bool have_ring() const { return have_ring_; }
  bool registered() const { return registered_; }
  bool direct() const { return direct_; }
  std::uint64_t bytes() const { return blocks_ * plan_.block_bytes; }
  void remove() const { (void)::unlink(name_.c_str()); }

  // Prepares the fill state.
  Result<void> prepare() {
    if (plan_.fill != FillState::Rewritten) remove();
    if (plan_.fill == FillState::Rewritten && std::filesystem::exists(name_) &&
        std::filesystem::file_size(name_) == bytes()) {
      return {};
    }
    SLUICE_TRY(open_file(O_RDWR | O_CREAT));
    if (plan_.fill == FillState::Allocated) {
      if (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes())) != 0)
        return make_error(errno, "fallocate");
    } else if (::ftruncate(fd_.get(), static_cast<off_t>(bytes())) != 0) {
      return make_error(errno, "ftruncate");
    }
    if (plan_.fill == FillState::Rewritten) SLUICE_TRY(transfer(Way::Write));
    if (::fsync(fd_.get()) != 0) return make_error(errno, "fsync");
    fd_.reset();
    return {};
  }

  // The whole file in one direction, until durable.
  Result<void> run(Way way) {
    SLUICE_TRY(open_file(way == Way::Write ? O_RDWR : O_RDONLY));
    SLUICE_TRY(transfer(way));
    if (way == Way::Write && (plan_.fsync ? ::fsync(fd_.get()) : ::fdatasync(fd_.get())) != 0)
      return make_error(errno, "sync " + name_);
    if (::close(fd_.release()) != 0) return make_error(errno, "close");
    return {};
  }

 private:
  Result<void> transfer(Way way) {
    return have_ring_ ? transfer_by_ring(way == Way::Write) : transfer_plainly(way == Way::Write);
  }

  char* buffer(std::uint64_t number) const { return buffers_.at(number * plan_.block_bytes); }

  Result<void> open_file(int flags) {
    fd_.reset(::open(name_.c_str(), flags | O_CLOEXEC | (direct_ ? O_DIRECT : 0), 0600));
    if (!fd_ && errno == EINVAL && direct_) {
      direct_ = false;
      fd_.reset(::open(name_.c_str(), flags | O_CLOEXEC, 0600));
    }
    if (!fd_) return make_error(errno, "open " + name_);
    return {};
  }

  Result<void> transfer_plainly(bool writing) {
    for (std::uint64_t block = 0; block < blocks_; ++block) {
      const auto offset = static_cast<off_t>(block * plan_.block_bytes);
      const ssize_t done = writing ? ::pwrite(fd_.get(), buffer(0), plan_.block_bytes, offset)
                                   : ::pread(fd_.get(), buffer(0), plan_.block_bytes, offset);
      if (done != static_cast<ssize_t>(plan_.block_bytes))
        return make_error(done < 0 ? errno : EIO, "raw transfer");
    }
    return {};
  }

  void submit(bool writing, std::uint64_t number) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    const std::uint64_t offset = next_block_++ * plan_.block_bytes;
    const auto length = static_cast<unsigned>(plan_.block_bytes);
    const int index = static_cast<int>(number);
    if (writing && registered_) {
      io_uring_prep_write_fixed(sqe, fd_.get(), buffer(number), length, offset, index);
    } else if (registered_) {
      io_uring_prep_read_fixed(sqe, fd_.get(), buffer(number), length, offset, index);
    } else if (writing) {
      io_uring_prep_write(sqe, fd_.get(), buffer(number), length, offset);
    } else {
      io_uring_prep_read(sqe, fd_.get(), buffer(number), length, offset);
    }
    io_uring_sqe_set_data64(sqe, number);
  }

  // Keeps `depth` blocks in flight; after an error only drains.
  Result<void> transfer_by_ring(bool writing) {
    next_block_ = 0;
    std::uint64_t in_flight = std::min<std::uint64_t>(plan_.depth, blocks_);
    for (std::uint64_t number = 0; number < in_flight; ++number) submit(writing, number);
    Result<void> result;
    while (in_flight > 0) {
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      if (submitted < 0 && submitted != -EINTR) return make_error(-submitted, "io_uring_enter");
      io_uring_cqe* cqe = nullptr;
      while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
        const std::uint64_t number = io_uring_cqe_get_data64(cqe);
        const int done = cqe->res;
        io_uring_cqe_seen(&ring_, cqe);
        --in_flight;
        if (done != static_cast<int>(plan_.block_bytes)) {
          result = make_error(done < 0 ? -done : EIO, "raw transfer");
        } else if (result && next_block_ < blocks_) {
          submit(writing, number);
          ++in_flight;
        }
      }
    }
    return result;
  }

  const RawPlan& plan_;
  std::string name_;
  std::uint64_t blocks_;
  Buffers buffers_;
  io_uring ring_{};
  bool have_ring_ = false;
  bool registered_ = false;
  bool direct_ = true;
  UniqueFd fd_;
  std::uint64_t next_block_ = 0;
};

RawDisk::RawDisk(RawPlan plan) : plan_(std::move(plan)) {}
RawDisk::~RawDisk() = default;

Result<std::unique_ptr<RawDisk>> RawDisk::make(RawPlan plan) {
  std::unique_ptr<RawDisk> disk(new RawDisk(std::move(plan)));
  for (const std::filesystem::path& file : disk->plan_.files) {
    disk->lanes_.push_back(std::make_unique<Lane>(disk->plan_, file));
    if (!disk->lanes_.back()->valid()) return make_error(ENOMEM, "buffers of the raw measurement");
  }
  return disk;
}

Result<void> RawDisk::prepare() {
  for (const std::unique_ptr<Lane>& lane : lanes_) SLUICE_TRY(lane->prepare());
  return {};
}

Result<Sample> RawDisk::write() {
  SLUICE_TRY(prepare());
  return write_prepared();
}

Result<Sample> RawDisk::write_prepared() {
  return run(Way::Write);
}

Result<Sample> RawDisk::read() {
  return run(Way::Read);
}

void RawDisk::remove() {
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->remove();
}

bool RawDisk::direct() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->direct(); });
}

bool RawDisk::ring() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->have_ring(); });
}

bool RawDisk::registered() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->registered(); });
}

Result<Sample> RawDisk::run(Way way) {
  return run_at_once(
      lanes_, [](Lane& /*lane*/) { return Result<void>(); }, [way](Lane& lane) { return lane.run(way); });
}

}  // namespace sluice::bench
