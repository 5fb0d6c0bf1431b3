// SPDX-License-Identifier: MIT
#include "images/verify.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "pipeline/arena.h"
#include "pipeline/checksum.h"
#include "pipeline/file_set.h"
#include "pipeline/slot_workers.h"
#include "pipeline/uring_reactor.h"

namespace sluice {

// A source that a chunk which cannot be read does not stop: it is noted, and goes on with whatever its buffer
// holds.
class Verification::Source final : public Stage {
 public:
  using OnUnreadable = std::function<void(const Chunk&, const Error&)>;
  Source(Stage& inner, OnUnreadable on_unreadable)
      : inner_(inner), on_unreadable_(std::move(on_unreadable)) {}

  const char* name() const override { return inner_.name(); }
  Result<Submit> submit(Slot& slot) override { return inner_.submit(slot); }
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override {
    Result<Progress> progress = inner_.advance(slot, op, result);
    if (progress) return progress;
    on_unreadable_(slot.chunk, progress.error());
    return Progress::Done;
  }

 private:
  Stage& inner_;
  OnUnreadable on_unreadable_;
};

Result<std::unique_ptr<Verification>> Verification::start(int dir_fd, const Checkpoint& checkpoint,
                                                          const VerifyOptions& options) {
  std::unique_ptr<Verification> all(new Verification(dir_fd, options));
  for (const auto& [id, image] : checkpoint.kfd) {
    for (PagesSet& set : pages_of(image)) SLUICE_TRY(all->add(id, std::move(set), image.dump_id));
  }
  for (const auto& [id, image] : checkpoint.render) {
    if (image.has_contents()) SLUICE_TRY(all->add(id, pages_of(image), image.dump_id));
  }
  const std::size_t cpus = std::max(std::thread::hardware_concurrency(), 1U);
  all->lane_count_ = std::min(all->items_.size(), cpus);
  all->lanes_.reserve(all->lane_count_);  // what cannot be put there would be joined uncancelled
  for (std::size_t i = 0; i < all->lane_count_; ++i) {
    {
      const Lock lock(all->mutex_);
      ++all->running_;
    }
    Verification* const self = all.get();
    auto lane = LaneThread::start("sluice-verify", [self] { return self->serve(); });
    if (!lane) return std::move(lane).error();
    all->lanes_.push_back(std::move(*lane));
  }
  return all;
}

Verification::~Verification() {
  cancelled_ = true;
  lanes_.clear();
}

Result<void> Verification::add(int id, PagesSet set, const std::optional<DumpId>& dump_id) {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, set.layout(options_.chunk_bytes));
  auto item = std::make_unique<Item>();
  item->id = id;
  item->set = std::move(set);
  item->dump_id = dump_id.value_or(DumpId{});
  item->bytes = layout.all_file_bytes();
  bytes_total_ += item->bytes;
  items_.push_back(std::move(item));
  return {};
}

bool Verification::wait_for(std::chrono::milliseconds period) {
  const auto end = std::chrono::steady_clock::now() + period;
  Lock lock(mutex_);
  while (running_ > 0) {
    if (!lock.wait_until(ended_, end)) return running_ == 0;
  }
  return true;
}

std::uint64_t Verification::bytes_done() const {
  std::uint64_t done = 0;
  for (const auto& item : items_) done += item->done;
  return done;
}

std::vector<VerifyProblem> Verification::take_problems() {
  const Lock lock(mutex_);
  return std::exchange(problems_, {});
}

std::vector<std::string> Verification::take_notes() {
  const Lock lock(mutex_);
  return std::exchange(notes_, {});
}

VerifyTotals Verification::totals() const {
  const Lock lock(mutex_);
  return totals_;
}

void Verification::report(VerifyProblem problem) {
  const Lock lock(mutex_);
  if (problem.kind == ProblemKind::BadBlock) ++totals_.bad_blocks;
  if (++totals_.problems <= kMostProblems) problems_.push_back(std::move(problem));
}

// A lane.
Result<void> Verification::serve() {
  for (std::size_t next = 0; !cancelled_ && (next = next_item_++) < items_.size();) {
    Item& item = *items_[next];
    try {
      look_at(item);
    } catch (const std::bad_alloc&) {
      report({ProblemKind::Unreadable,
              item.set.metadata_name(item.id),
              0,
              0,
              item.set.words(),
              {},
              "out of memory"});
    }
    item.done = item.bytes;
  }
  const Lock lock(mutex_);
  --running_;
  ended_.notify_all();
  return {};
}

void Verification::look_at(Item& item) {
  const auto failed = [&](const Error& error) {
    const ProblemKind kind = error.err == EBADMSG ? ProblemKind::BadFile : ProblemKind::Unreadable;
    report({kind, item.set.pages_name(item.id, 0), 0, 0, item.set.words(), {}, error.what});
  };
  auto layout = item.set.layout(options_.chunk_bytes);
  if (!layout) return failed(layout.error());
  std::optional<Sidecar> sums = sums_of(item, *layout);
  const std::uint64_t block_bytes = sums ? sums->most_block_bytes() : 0;
  std::vector<SumTable> tables = sums ? std::move(sums->tables) : std::vector<SumTable>();
  PagesSet set = item.set;
  drop_bad_files(item, *layout, set, tables);
  if (set.bos.empty()) return;
  layout = set.layout(std::max(options_.chunk_bytes, block_bytes));
  if (!layout) return failed(layout.error());
  if (auto done = read(item, set, *layout, std::move(tables)); !done) failed(done.error());
}

std::optional<Sidecar> Verification::sums_of(const Item& item, const ImageLayout& layout) {
  auto sums = read_sidecar(dir_fd_, item.id, item.set, layout, item.dump_id);
  if (sums) return std::move(*sums);
  report({ProblemKind::BadSums, item.set.sums_name(item.id), 0, 0, item.set.words(), {}, sums.error().what});
  return std::nullopt;
}

// Reports the files of the item that are not there or have another size, and takes them out of `set` and
// `tables`.
void Verification::drop_bad_files(const Item& item, const ImageLayout& layout, PagesSet& set,
                                  std::vector<SumTable>& tables) {
  std::vector<PagesBo> bos;
  std::vector<SumTable> left;
  for (std::uint32_t file = 0; file < layout.file_count(); ++file) {
    const std::string name = item.set.pages_name(item.id, file);
    struct stat status {};
    const Result<void> good = ::fstatat(dir_fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0
                                  ? Result<void>(make_error(errno, "open " + name))
                                  : check_pages_file(name, status, layout.file_bytes(file));
    if (!good) {
      report({ProblemKind::BadFile, name, 0, 0, item.set.words(), {}, good.error().what});
      continue;
    }
    if (item.set.drm_minor) {
      bos.push_back(item.set.bos[file]);
    } else {
      bos = item.set.bos;
    }
    if (!tables.empty()) left.push_back(std::move(tables[file]));
  }
  set.bos = std::move(bos);
  tables = std::move(left);
}

Result<void> Verification::read(Item& item, const PagesSet& set, const ImageLayout& layout,
                                std::vector<SumTable> tables) {
  const auto slot_count = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(slots_in(options_.staging_bytes, layout.chunk_bytes()), layout.chunk_count()));
  SLUICE_TRY_ASSIGN(StagingArena arena, StagingArena::make(layout.chunk_bytes(), slot_count, -1));
  std::string note;
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Reactor> reactor,
                    make_reactor(slot_count * static_cast<unsigned>(kOpsPerSlot), arena.bytes(), note));
  const ArenaKeeper keeper(arena, *reactor);
  std::vector<Slot> slots = slots_of(arena);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<FileSetSource> files,
                    FileSetSource::open(dir_fd_, set.pages_names(item.id), layout, *reactor,
                                        FileOptions{.io_mode = IoMode::Uncached,
                                                    .share = &disk_,
                                                    .most_on_disk = most_on_disk(slot_count)}));

  Mutex unreadable_mutex;
  std::vector<Chunk> unreadable;
  Source source(*files, [&](const Chunk& chunk, const Error& error) {
    report({ProblemKind::Unreadable, set.pages_name(item.id, chunk.file), chunk.file_offset, chunk.length,
            set.words(), set.place(layout, chunk), error.what});
    const Lock lock(unreadable_mutex);
    unreadable.push_back(chunk);
  });
  const auto on_bad_block = [&](const BadBlock& block) {
    {
      const Lock lock(unreadable_mutex);
      for (const Chunk& chunk : unreadable) {
        if (chunk.file == block.file && block.file_offset >= chunk.file_offset &&
            block.file_offset < chunk.file_offset + chunk.length)
          return;
      }
    }
    report({ProblemKind::BadBlock, set.pages_name(item.id, block.file), block.file_offset, block.length,
            set.words(), set.place(layout, Chunk{0, block.file_offset, block.length, block.file}), ""});
  };
  std::unique_ptr<SlotWorkers> workers;
  if (const unsigned threads = tables.empty() ? 0 : spare_workers(lane_count_); threads > 0) {
    SLUICE_TRY_ASSIGN(workers, SlotWorkers::start("sluice-sum", threads, slot_count));
  }
  // A file's length lies in its first block. Without sums it is compared as a restore would.
  ChecksumOptions checksum_options;
  checksum_options.check_headers = tables.empty() && !set.drm_minor;
  checksum_options.on_bad_block = on_bad_block;
  std::uint64_t blocks = 0;
  for (const SumTable& table : tables) blocks += table.sums.size();
  ChecksumStage checksum(Direction::Restore, layout, *reactor, tables, checksum_options, nullptr,
                         std::move(workers));
  const std::array<Stage*, 2> route{&source, &checksum};
  Pipeline pipeline(layout, slots, route, *reactor);
  SLUICE_TRY_ASSIGN(const PipelineStats stats,
                    pipeline.run(
                        [&item](std::uint64_t done, std::uint64_t total) {
                          const double part = static_cast<double>(done) / static_cast<double>(total);
                          item.done = static_cast<std::uint64_t>(part * static_cast<double>(item.bytes));
                        },
                        [this] { return cancelled_.load(); }));
  const Lock lock(mutex_);
  if (!note.empty()) notes_.push_back(set.words() + ": " + note);
  totals_.files += layout.file_count();
  totals_.bytes += stats.bytes;
  totals_.hole_bytes += stats.zero_bytes;
  totals_.blocks += blocks;
  if (tables.empty()) totals_.unverified_bytes += stats.bytes;
  totals_.direct = totals_.direct && files->direct();
  return {};
}

}  // namespace sluice
