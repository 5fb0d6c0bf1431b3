// SPDX-License-Identifier: MIT
#include "verify/verify.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "images/files/digest.h"
#include "images/files/files.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/extents/extent_source.h"
#include "pipeline/lane.h"
#include "pipeline/slot_workers.h"
#include "pipeline/store/file_set.h"

namespace sluice {

// A source that goes on after a chunk that cannot be read: it notes the chunk and leaves the buffer as it is.
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

// A source that a stream fills, chunk by chunk, in the lane's thread: reading and unpacking an archive has no
// completion of its own.
class Verification::StreamSource final : public Stage {
 public:
  StreamSource(ByteStream& bytes, Reactor& reactor) : bytes_(bytes), reactor_(reactor) {}

  const char* name() const override { return "store"; }
  Result<Submit> submit(Slot& slot) override {
    if (running_ || slot.chunk.index != next_chunk_) return Submit::Busy;
    if (auto filled = fill(slot); !filled) {
      failed_at_ = slot.chunk;
      return std::move(filled).error();
    }
    running_ = true;
    ++next_chunk_;
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t /*result*/) override {
    running_ = false;
    return Progress::Done;
  }

  // The chunk at which the stream ended, if it did.
  const std::optional<Chunk>& failed_at() const { return failed_at_; }

 private:
  Result<void> fill(Slot& slot) {
    for (std::uint64_t at = 0; at < slot.chunk.length; at += kZeroUnitBytes) {
      const std::uint64_t length = std::min(kZeroUnitBytes, slot.chunk.length - at);
      const bool zero = bytes_.zeros_ahead(length) == length;
      slot.zero_units[static_cast<std::size_t>(at / kZeroUnitBytes)] = zero;
      SLUICE_TRY(zero ? bytes_.skip(length)
                      : bytes_.read(slot.buffer.subspan(static_cast<std::size_t>(at),
                                                        static_cast<std::size_t>(length))));
    }
    return {};
  }

  ByteStream& bytes_;
  Reactor& reactor_;
  std::uint64_t next_chunk_ = 0;
  bool running_ = false;
  std::optional<Chunk> failed_at_;
};

ProblemKind problem_kind(int err, ProblemKind damaged) {
  switch (cause_of(err)) {
    case Cause::Damaged:
      return damaged;
    case Cause::Missing:
      return ProblemKind::Missing;
    case Cause::NotAllowed:
      return ProblemKind::NotAllowed;
    case Cause::Unsupported:
      return ProblemKind::Unsupported;
    case Cause::Unsigned:
      return ProblemKind::Unsigned;
    case Cause::Unreadable:
      break;
  }
  return ProblemKind::Unreadable;
}

void VerifyTotals::add(ProblemKind kind) {
  ++problems;
  if (kind == ProblemKind::BadBlock) ++bad_blocks;
  if (kind == ProblemKind::Missing) ++missing;
  if (kind == ProblemKind::Unsupported) ++unsupported;
  if (kind == ProblemKind::Unsigned) ++unsigned_images;
  if (kind == ProblemKind::NotAllowed || kind == ProblemKind::Unreadable) ++unread;
}

Result<std::unique_ptr<Verification>> Verification::start(const ImageSource& source,
                                                          const Checkpoint& checkpoint,
                                                          const VerifyOptions& options) {
  std::unique_ptr<Verification> all(new Verification(source, options));
  for (NumberedPages& pages : pages_of(checkpoint)) SLUICE_TRY(all->add(std::move(pages)));
  const bool files = source.directory().has_value();
  const std::size_t cpus = std::max(std::thread::hardware_concurrency(), 1U);
  all->lane_count_ = std::min(all->items_.size(), files ? cpus : 1);
  all->lanes_.reserve(all->lane_count_);  // a lane that could not be stored would be joined uncancelled
  for (std::size_t i = 0; i < all->lane_count_; ++i) {
    {
      const Lock lock(all->mutex_);
      ++all->running_;
    }
    Verification* const self = all.get();
    auto lane = LaneThread::start("sluice-verify", [self, files]() -> Result<void> {
      files ? self->serve_files() : self->serve_stream();
      const Lock lock(self->mutex_);
      --self->running_;
      self->ended_.notify_all();
      return {};
    });
    if (!lane) return std::move(lane).error();
    all->lanes_.push_back(std::move(*lane));
  }
  return all;
}

Verification::~Verification() {
  cancelled_ = true;
  lanes_.clear();
}

Result<void> Verification::add(NumberedPages pages) {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, pages.set.layout(options_.chunk_bytes));
  auto item = std::make_unique<Item>();
  item->id = pages.id;
  item->set = std::move(pages.set);
  item->dump_id = pages.dump_id;
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
  totals_.add(problem.kind);
  if (totals_.problems <= kMostProblems) problems_.push_back(std::move(problem));
}

// About a file as a whole.
void Verification::report(const Item& item, const std::string& file, ProblemKind damaged,
                          const Error& error) {
  report({problem_kind(error.err, damaged), file, 0, 0, item.set.describe(), {}, error.what, error.err});
}

// One lane's work.
void Verification::serve_files() {
  for (std::size_t next = 0; !cancelled_ && (next = next_item_++) < items_.size();) {
    Item& item = *items_[next];
    try {
      std::optional<Readable> readable = look_at(item);
      const auto done = readable ? read_files(item, std::move(*readable)) : Result<void>();
      if (!done) report(item, item.set.pages_name(item.id, 0), ProblemKind::BadFile, done.error());
    } catch (const std::bad_alloc&) {
      report(item, item.set.metadata_name(item.id), ProblemKind::BadFile, {ENOMEM, "out of memory"});
    }
    item.done = item.bytes;
  }
}

// The only lane of a stream, which has one order. Each of its files is a run of the engine.
void Verification::serve_stream() {
  struct Waiting {
    Item* item = nullptr;
    Readable readable;
  };
  std::map<std::string, Waiting> waiting;
  std::set<std::string> names;
  try {
    for (const auto& item : items_) {
      std::optional<Readable> readable = look_at(*item);
      const std::size_t files = !readable ? 0 : readable->set.drm_minor ? readable->set.bos.size() : 1;
      for (std::uint32_t file = 0; file < files; ++file) {
        const std::string name = readable->names[file];
        Readable one{readable->set, {}, {name}};
        if (one.set.drm_minor) one.set.bos = {readable->set.bos[file]};
        if (!readable->tables.empty()) one.tables.push_back(std::move(readable->tables[file]));
        names.insert(name);
        waiting.insert_or_assign(name, Waiting{item.get(), std::move(one)});
      }
    }
    Result<void> done =
        source_.stream(names, [&](const std::string& name, ByteStream& bytes) -> Result<void> {
          if (cancelled_) return Error{ECANCELED, "cancelled"};
          auto node = waiting.extract(name);
          return read_stream(*node.mapped().item, std::move(node.mapped().readable), bytes);
        });
    if (done && !waiting.empty())
      done = Error{ENOENT, "the archive changed while it was read; try again [SL-T11]"};
    for (const auto& [name, each] : waiting) {
      if (!done) report(*each.item, name, ProblemKind::BadFile, explain("read " + name, done.error()));
    }
  } catch (const std::bad_alloc&) {
    report({ProblemKind::Unreadable, "", 0, 0, "", {}, "out of memory", ENOMEM});
  }
  for (const auto& item : items_) item->done = item->bytes;
}

std::optional<Verification::Readable> Verification::look_at(const Item& item) {
  const auto layout = item.set.layout(options_.chunk_bytes);
  if (!layout) {
    // unreached: no test
    report(item, item.set.metadata_name(item.id), ProblemKind::BadFile, layout.error());
    return std::nullopt;
  }
  std::optional<Sidecar> sums = sums_of(item, *layout);
  Readable readable{item.set, {}, sums ? sums->pages_files : item.set.pages_names(item.id)};
  if (sums && sums->needs().any()) {
    if (auto followed = follow_chain(item, *layout, *sums, readable); !followed) {
      report(item, readable.names.front(), ProblemKind::BadFile, beside_signed(followed.error()));
      return std::nullopt;
    }
  }
  if (sums) readable.tables = std::move(sums->tables);
  drop_bad_files(item, *layout, readable);
  return readable.set.bos.empty() ? std::nullopt : std::optional(std::move(readable));
}

// Contents that are not in its own files.
Result<void> Verification::follow_chain(const Item& item, const ImageLayout& layout, const Sidecar& sums,
                                        Readable& readable) {
  const auto directory = source_.directory();
  if (!directory)
    return Error{ENOSYS, item.set.sums_name(item.id) +
                             " says that other files have a part of the contents; verify the directory "
                             "instead of an archive [SL-T12]"};
  SLUICE_TRY_ASSIGN(const auto chain, chain_for(sums.needs()));
  SLUICE_TRY_ASSIGN(readable.maps, chain->resolve(*directory, chain->directories(), layout, sums));
  return {};
}

// Read once for all lanes.
Result<std::shared_ptr<const Chain>> Verification::chain_for(const Needs& needs) {
  const Lock lock(chains_mutex_);
  std::shared_ptr<const Chain>& known = chains_[needs];
  if (!known) {
    SLUICE_TRY_ASSIGN(known, Chain::open(*source_.directory(), needs, source_.keys()));
  }
  return known;
}

std::optional<Sidecar> Verification::sums_of(const Item& item, const ImageLayout& layout) {
  const std::string name = item.set.sums_name(item.id);
  const auto payload = read_image(source_, name);
  auto sums = take_sidecar(payload, item.id, item.set, layout, item.dump_id, source_.keys());
  if (sums) return std::move(*sums);
  const bool missing = !payload && payload.error().err == ENOENT;  // and the dump wrote it
  report(item, name, missing ? ProblemKind::Missing : ProblemKind::BadSums, sums.error());
  return std::nullopt;
}

// Reports files of the item that are missing, cannot be opened or have the wrong size, and removes them.
void Verification::drop_bad_files(const Item& item, const ImageLayout& layout, Readable& readable) {
  std::vector<PagesBo> bos;
  std::vector<SumTable> left;
  std::vector<std::string> names;
  std::vector<ExtentMap> maps;
  for (std::uint32_t file = 0; file < layout.file_count(); ++file) {
    const std::string name = readable.names[file];
    const auto found = source_.look(name);
    const Result<void> good =
        found ? check_pages_size(name, found->bytes, layout.file_bytes(file)) : Result<void>(found.error());
    if (!good) {
      report(item, name, ProblemKind::BadFile, good.error());
      continue;
    }
    if (item.set.drm_minor) {
      bos.push_back(item.set.bos[file]);
    } else {
      bos = item.set.bos;
    }
    if (!readable.tables.empty()) left.push_back(std::move(readable.tables[file]));
    if (!readable.maps.empty()) maps.push_back(std::move(readable.maps[file]));
    names.push_back(name);
  }
  readable.set.bos = std::move(bos);
  readable.tables = std::move(left);
  readable.names = std::move(names);
  readable.maps = std::move(maps);
}

// A chunk is at least as large as the largest block.
Result<ImageLayout> Verification::layout_of(const Readable& readable) const {
  std::uint64_t chunk_bytes = options_.chunk_bytes;
  for (const SumTable& table : readable.tables) chunk_bytes = std::max(chunk_bytes, table.block_bytes);
  return readable.set.layout(chunk_bytes);
}

// All files of an item; goes on after bad ones.
Result<void> Verification::read_files(Item& item, Readable readable) {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, layout_of(readable));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Lane> lane,
                    Lane::make(layout, {.staging_bytes = options_.staging_bytes}));
  const PagesSet& set = readable.set;
  const FileOptions file_options{
      .io_mode = IoMode::Uncached, .share = &disk_, .most_on_disk = most_on_disk(lane->slot_count())};
  std::unique_ptr<FileSet> files;
  if (!readable.maps.empty()) {
    files = std::make_unique<ExtentSource>(readable.maps, layout, lane->reactor(), file_options);
  } else {
    SLUICE_TRY_ASSIGN(files, FileSetSource::open(*source_.directory(), readable.names, layout,
                                                 lane->reactor(), file_options));
  }
  Mutex unreadable_mutex;
  std::vector<Chunk> unreadable;
  Source source(*files, [&](const Chunk& chunk, const Error& error) {
    report({problem_kind(error.err, ProblemKind::BadFile), readable.names[chunk.file], chunk.file_offset,
            chunk.length, set.describe(), set.place(layout, chunk), error.what, error.err});
    const Lock lock(unreadable_mutex);
    unreadable.push_back(chunk);
  });
  const auto is_known = [&](const BadBlock& block) {
    const Lock lock(unreadable_mutex);
    return std::any_of(unreadable.begin(), unreadable.end(), [&](const Chunk& chunk) {
      return chunk.file == block.file && block.file_offset >= chunk.file_offset &&
             block.file_offset < chunk.file_offset + chunk.length;
    });
  };
  SLUICE_TRY(compare(item, readable, *lane, source, is_known));
  const Lock lock(mutex_);
  totals_.direct = totals_.direct && files->direct();
  return {};
}

// One file, as far as the stream goes. An error is the stream's: nothing follows it.
Result<void> Verification::read_stream(Item& item, Readable readable, ByteStream& bytes) {
  const std::string name = readable.names.front();
  const auto layout = layout_of(readable);
  const auto lane = layout ? Lane::make(*layout, {.staging_bytes = options_.staging_bytes}) : layout.error();
  if (!lane) {
    report(item, name, ProblemKind::BadFile, lane.error());
    return {};
  }
  StreamSource source(bytes, (*lane)->reactor());
  const auto compared = compare(item, readable, **lane, source, [](const BadBlock&) { return false; });
  {
    const Lock lock(mutex_);
    totals_.direct = false;
  }
  if (compared || cancelled_) return {};
  if (!source.failed_at()) {
    report(item, name, ProblemKind::BadFile, compared.error());  // unreached: no test
    return {};
  }
  Chunk rest = *source.failed_at();
  rest.length = layout->file_bytes() - rest.file_offset;
  report({problem_kind(compared.error().err, ProblemKind::BadFile), name, rest.file_offset, rest.length,
          readable.set.describe(), readable.set.place(*layout, rest), compared.error().what,
          compared.error().err});
  return compared.error();
}

// Runs the engine. `is_known`: whether a block was reported already.
Result<void> Verification::compare(Item& item, Readable& readable, Lane& lane, Stage& source,
                                   const IsKnown& is_known) {
  const PagesSet& set = readable.set;
  std::vector<SumTable>& tables = readable.tables;
  // The file's length lies in its first block. Without sums that is compared as a restore would.
  ChecksumOptions checksum_options;
  checksum_options.check_headers = tables.empty() && !set.drm_minor;
  checksum_options.on_bad_block = [&](const BadBlock& block) {
    if (is_known(block)) return;
    // With a parent, the file that has the block.
    std::string file = readable.names[block.file];
    std::uint64_t offset = block.file_offset;
    if (!readable.maps.empty()) {
      const ExtentMap& map = readable.maps[block.file];
      const Extent& extent = map.at(offset);
      if (!extent.is_zeros()) {
        file = map.files[extent.file].words;
        offset = extent.offset + (offset - extent.begin);
      }
    }
    report({ProblemKind::BadBlock, file, offset, block.length, set.describe(),
            set.place(lane.layout(), Chunk{0, block.file_offset, block.length, block.file}), "", EBADMSG});
  };
  std::uint64_t blocks = 0;
  for (const SumTable& table : tables) blocks += table.sums.size();
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Stage> checksum,
                    make_checksum(lane, Direction::Restore, tables, checksum_options, nullptr,
                                  tables.empty() ? 0 : spare_workers(lane_count_)));
  const std::uint64_t done_before = item.done;
  const auto in_all = static_cast<double>(lane.layout().all_file_bytes());
  SLUICE_TRY_ASSIGN(const PipelineStats stats,
                    lane.run(
                        Route{checksum.get(), &source}.towards(Direction::Restore),
                        [&](std::uint64_t done, std::uint64_t total) {
                          const double part = static_cast<double>(done) / static_cast<double>(total);
                          item.done = done_before + static_cast<std::uint64_t>(part * in_all);
                        },
                        [this] { return cancelled_.load(); }));
  const Lock lock(mutex_);
  const std::string note = lane.note().empty() ? "" : set.describe() + ": " + lane.note();
  if (!note.empty() && std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
  totals_.files += lane.layout().file_count();
  totals_.bytes += stats.bytes;
  totals_.hole_bytes += stats.zero_bytes;
  totals_.blocks += blocks;
  if (tables.empty()) totals_.unverified_bytes += stats.bytes;
  return {};
}

}  // namespace sluice
