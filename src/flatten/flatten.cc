// SPDX-License-Identifier: MIT
#include "flatten/flatten.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/image_file.h"
#include "base/units.h"
#include "flatten/clone_plan.h"
#include "images/chain/chain.h"
#include "images/files/directory_lock.h"
#include "images/files/files.h"
#include "images/pages.h"
#include "images/sums.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/extents/extent_source.h"
#include "pipeline/lane.h"
#include "pipeline/slot_workers.h"
#include "pipeline/store/file_set.h"

namespace sluice {
namespace {

// The pages files of one sidecar, of which some are incomplete.
struct Item {
  int id = 0;
  PagesSet set;
  Sidecar sidecar;
};

// Some files of an item, as a set.
struct Part {
  PagesSet set;
  std::vector<std::string> names;  // their names in the flat set
  std::vector<SumTable> tables;
  std::vector<ExtentMap> maps;
};

// The source of a flat file, which also marks what is cloned instead of written.
class MarkedSource final : public Stage {
 public:
  // Borrows both.
  MarkedSource(Stage& inner, const std::vector<ClonePlan>& plans) : inner_(inner), plans_(plans) {}

  const char* name() const override { return inner_.name(); }
  Result<Submit> submit(Slot& slot) override { return inner_.submit(slot); }
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override {
    SLUICE_TRY_ASSIGN(const Progress progress, inner_.advance(slot, op, result));
    if (progress != Progress::Done) return progress;
    const std::vector<bool>& parts = plans_[slot.chunk.file].parts;
    const auto first = static_cast<std::size_t>(slot.chunk.file_offset / kZeroUnitBytes);
    for (std::size_t i = 0; i < slot.known_units.size(); ++i)
      slot.known_units[i] = first + i < parts.size() && parts[first + i];
    return progress;
  }

 private:
  Stage& inner_;
  const std::vector<ClonePlan>& plans_;
};

Result<void> check_own(int dir_fd) {
  struct stat status {};
  if (::fstat(dir_fd, &status) != 0) return make_error(errno, "look at the directory");
  if (status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
  return Error{
      EACCES, "the directory is not this user's own, or others may write there; chown and chmod it [SL-T46]"};
}

class Flattener {
 public:
  Flattener(const ImageSource& source, const Checkpoint& checkpoint, const FlattenOptions& options)
      : source_(source), checkpoint_(checkpoint), options_(options), dir_fd_(*source.directory()) {}

  Result<void> add(int id, PagesSet set, const std::optional<DumpId>& dump_id);
  Result<FlattenTotals> run();

 private:
  Result<void> open_chain();
  Result<void> flatten(Item& item);
  Part part_of(const Item& item, const std::vector<ExtentMap>& maps,
               const std::vector<std::uint32_t>& files) const;
  Result<std::vector<std::uint32_t>> left_to_make(const Item& item, const std::vector<ExtentMap>& maps);
  Result<void> make(const Item& item, Part part);
  Result<std::vector<ClonePlan>> plan(const std::vector<ExtentMap>& maps) const;
  Result<void> save_sidecar(Item& item);
  Result<void> remove_unnamed(const Item& item) const;
  Result<void> rename_metadata();
  Result<PipelineStats> run_lane(Lane& lane, const Route& route);

  const ImageSource& source_;
  const Checkpoint& checkpoint_;
  const FlattenOptions& options_;
  const int dir_fd_;
  std::shared_ptr<const Chain> chain_;
  std::vector<Item> items_;
  std::uint64_t bytes_done_ = 0, bytes_total_ = 0;
  FlattenTotals totals_;
};

Result<void> Flattener::add(int id, PagesSet set, const std::optional<DumpId>& dump_id) {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, set.layout(options_.chunk_bytes));
  SLUICE_TRY_ASSIGN(std::optional<Sidecar> sidecar,
                    read_sidecar(source_, id, set, layout, dump_id.value_or(DumpId{})));
  if (!sidecar) return {};  // a dump without sums, which has no parent
  for (std::uint32_t file = 0; file < layout.file_count(); ++file)
    bytes_total_ += sidecar->is_partial(file) ? layout.file_bytes(file) : 0;
  items_.push_back({id, std::move(set), std::move(*sidecar)});
  return {};
}

Result<void> Flattener::open_chain() {
  Needs needs;
  for (const Item& item : items_) {
    const Needs its = item.sidecar.needs();
    if (its.parent != DumpId{} && needs.parent != DumpId{} && needs.parent != its.parent)
      return Error{EBADMSG, "the images name two parents of this checkpoint; use another one [SL-I43]"};
    if (its.parent != DumpId{}) needs.parent = its.parent;
    needs.replicas = needs.replicas || its.replicas;
  }
  if (!needs.any()) return {};
  SLUICE_TRY_ASSIGN(chain_, Chain::open(dir_fd_, needs, source_.keys()));
  return {};
}

Result<FlattenTotals> Flattener::run() {
  SLUICE_TRY(open_chain());
  for (Item& item : items_) {
    if (item.sidecar.needs().any()) SLUICE_TRY(flatten(item));
  }
  // Last, because files of one item may be needed by others.
  for (const Item& item : items_) SLUICE_TRY(remove_unnamed(item));
  SLUICE_TRY(rename_metadata());
  return totals_;
}

// The order makes it safe: new files, durable and named; then the sidecar. The files that it named before go
// when all are done.
Result<void> Flattener::flatten(Item& item) {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, item.set.layout(options_.chunk_bytes));
  SLUICE_TRY_ASSIGN(const std::vector<ExtentMap> maps,
                    chain_->resolve(dir_fd_, chain_->directories(), layout, item.sidecar));
  SLUICE_TRY_ASSIGN(const std::vector<std::uint32_t> files, left_to_make(item, maps));
  if (!files.empty()) SLUICE_TRY(make(item, part_of(item, maps, files)));
  SLUICE_TRY(sync_directory(dir_fd_));
  return save_sidecar(item);
}

Part Flattener::part_of(const Item& item, const std::vector<ExtentMap>& maps,
                        const std::vector<std::uint32_t>& files) const {
  Part part{item.set, {}, {}, {}};
  if (item.set.drm_minor) part.set.bos.clear();  // one file each
  for (const std::uint32_t file : files) {
    if (item.set.drm_minor) part.set.bos.push_back(item.set.bos[file]);
    part.names.push_back(item.set.pages_name(item.id, file));
    part.tables.push_back(item.sidecar.tables[file]);
    part.maps.push_back(maps[file]);
  }
  return part;
}

// Incomplete files, except those that an earlier run has already made and that are valid.
Result<std::vector<std::uint32_t>> Flattener::left_to_make(const Item& item,
                                                           const std::vector<ExtentMap>& maps) {
  std::vector<std::uint32_t> left, there;
  for (std::uint32_t file = 0; file < item.sidecar.tables.size(); ++file) {
    if (!item.sidecar.is_partial(file)) continue;
    struct stat status {};
    const std::string name = item.set.pages_name(item.id, file);
    const bool is_there = ::fstatat(dir_fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                          is_private(status) &&
                          static_cast<std::uint64_t>(status.st_size) == item.sidecar.tables[file].file_bytes;
    (is_there ? there : left).push_back(file);
  }
  if (there.empty()) return left;
  Part part = part_of(item, maps, there);
  SLUICE_TRY_ASSIGN(const ImageLayout layout, part.set.layout(options_.chunk_bytes));
  SLUICE_TRY_ASSIGN(const auto lane, Lane::make(layout, {.staging_bytes = options_.staging_bytes}));
  SLUICE_TRY_ASSIGN(const auto files, FileSetSource::open(dir_fd_, part.names, layout, lane->reactor(),
                                                          {.io_mode = IoMode::Uncached}));
  std::vector<std::atomic<bool>> is_bad(there.size());
  SLUICE_TRY_ASSIGN(
      const auto checksum,
      make_checksum(*lane, Direction::Restore, part.tables,
                    {.on_bad_block = [&is_bad](const BadBlock& block) { is_bad[block.file] = true; }},
                    nullptr, spare_workers(1)));
  const std::uint64_t done_before = bytes_done_;
  SLUICE_TRY_ASSIGN(const PipelineStats stats, run_lane(*lane, Route{files.get(), checksum.get()}));
  bytes_done_ = done_before;
  (void)stats;
  for (std::uint32_t i = 0; i < there.size(); ++i) {
    const std::uint64_t bytes = layout.file_bytes(i);
    if (is_bad[i]) {
      left.push_back(there[i]);
    } else {
      // An earlier run named it, perhaps not durably.
      SLUICE_TRY_ASSIGN(const ImageFile file, open_image_file(dir_fd_, part.names[i]));
      if (::fsync(file.fd.get()) != 0) return make_error(errno, "sync " + part.names[i], Topic::Images);
      totals_.files += 1;
      totals_.bytes += bytes;
      bytes_done_ += bytes;
    }
  }
  std::sort(left.begin(), left.end());
  return left;
}

// Only what the file system refuses to share is copied: any other error fails.
Result<std::vector<ClonePlan>> Flattener::plan(const std::vector<ExtentMap>& maps) const {
  SLUICE_TRY_ASSIGN(const CloneProbe probe, CloneProbe::make(dir_fd_, options_.clone));
  std::vector<ClonePlan> plans;
  plans.reserve(maps.size());
  for (const ExtentMap& map : maps) {
    std::vector<bool> can_share;
    for (const ExtentFile& file : map.files) {
      int refusal = EINVAL;
      if (file.bytes > kLargestUncloned) {
        SLUICE_TRY_ASSIGN(refusal, probe.ask(file));
      }
      can_share.push_back(refusal == 0);
    }
    plans.push_back(plan_clones(map, probe.block_bytes(), can_share));
  }
  return plans;
}

// Makes files and names them.
Result<void> Flattener::make(const Item& item, Part part) {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, part.set.layout(options_.chunk_bytes));
  SLUICE_TRY_ASSIGN(const std::vector<ClonePlan> plans, plan(part.maps));
  std::unique_ptr<FileSetSink> sink;  // outlives the cloner, which uses its files
  SLUICE_TRY_ASSIGN(const auto lane, Lane::make(layout, {.staging_bytes = options_.staging_bytes}));
  SLUICE_TRY_ASSIGN(const auto cloner,
                    ExtentCloner::start({.runs = [&plans](std::uint32_t file) { return plans[file].runs; },
                                         .sums = {&layout, part.tables},
                                         .call = options_.clone},
                                        *lane));
  ExtentSource files(part.maps, layout, lane->reactor(), {.io_mode = IoMode::Uncached});
  MarkedSource source(files, plans);
  sink = std::make_unique<FileSetSink>(dir_fd_, part.names, layout, lane->reactor(),
                                       FileOptions{.cloner = cloner.get()});
  const auto describe = [&](std::uint32_t file, std::uint64_t offset, std::uint64_t length) {
    const Extent& extent = part.maps[file].at(offset);
    const std::string where = extent.is_zeros() ? "a hole"  // unreached: no test
                                                : part.maps[file].files[extent.file].words + " at " +
                                                      std::to_string(extent.offset + (offset - extent.begin));
    return where + ", " + part.set.describe(item.id, layout, Chunk{0, offset, length, file});
  };
  SLUICE_TRY_ASSIGN(const auto checksum,
                    make_checksum(*lane, Direction::Restore, part.tables, {}, describe, spare_workers(1)));
  SLUICE_TRY_ASSIGN(const PipelineStats stats, run_lane(*lane, Route{&source, checksum.get(), sink.get()}));
  SLUICE_TRY(sink->commit());
  std::uint64_t cloned_bytes = 0;
  for (const ClonePlan& plan : plans) cloned_bytes += plan.bytes;
  cloned_bytes -= cloner->copied_bytes();
  totals_.files += part.names.size();
  totals_.bytes += stats.bytes;
  totals_.cloned_bytes += cloned_bytes;
  totals_.written_bytes += stats.bytes - stats.zero_bytes - cloned_bytes;
  return {};
}

Result<PipelineStats> Flattener::run_lane(Lane& lane, const Route& route) {
  const std::uint64_t done_before = bytes_done_;
  const std::uint64_t bytes = lane.layout().all_file_bytes();
  SLUICE_TRY_ASSIGN(const PipelineStats stats, lane.run(route, [&](std::uint64_t done, std::uint64_t total) {
    bytes_done_ =
        done_before + static_cast<std::uint64_t>(static_cast<double>(bytes) * static_cast<double>(done) /
                                                 static_cast<double>(total));
    if (options_.progress) options_.progress(bytes_done_, bytes_total_);
  }));
  return stats;
}

// The rename makes the set flat.
Result<void> Flattener::save_sidecar(Item& item) {
  item.sidecar.pages_files = item.set.pages_names(item.id);
  item.sidecar.parents.clear();
  item.sidecar.parent_dump_id = {};
  item.sidecar.replicas_left_out = false;
  // As hints they stay, unless they name files that will go.
  for (KnownRuns& runs : item.sidecar.replicas)
    if (lacks_among(runs.files) != Lacks::Nothing) runs = {};
  SLUICE_TRY(
      write_image(dir_fd_, item.set.sums_name(item.id), pack_sidecar(item.sidecar, source_.keys()), true));
  return sync_directory(dir_fd_);
}

// Files that only the old sidecar named.
Result<void> Flattener::remove_unnamed(const Item& item) const {
  for (std::uint32_t file = 0; file < item.sidecar.tables.size(); ++file) {
    for (const Lacks lacks : {Lacks::Parents, Lacks::Replicas})
      SLUICE_TRY(remove_image(dir_fd_, item.set.pages_name(item.id, file, lacks)));
  }
  return {};
}

// Once all sets are flat, durably. Readers accept both names of an image, so some may have the one and some
// the other.
Result<void> Flattener::rename_metadata() {
  for (const std::string& name : checkpoint_.partial_names) {
    SLUICE_TRY(rename_image(dir_fd_, name, complete_name(name).value()));
    totals_.renamed = true;
  }
  return totals_.renamed ? sync_directory(dir_fd_) : Result<void>();
}

}  // namespace

Result<FlattenTotals> flatten(const ImageSource& source, const Checkpoint& checkpoint,
                              const FlattenOptions& options) {
  if (!checkpoint.faults().empty()) return checkpoint.faults().front();
  SLUICE_TRY(check_own(*source.directory()));
  SLUICE_TRY_ASSIGN(const DirectoryLock lock, DirectoryLock::take(*source.directory()));
  Flattener flattener(source, checkpoint, options);
  for (const auto& [id, image] : checkpoint.kfd) {
    for (PagesSet& set : pages_of(image)) SLUICE_TRY(flattener.add(id, std::move(set), image.dump_id));
  }
  for (const auto& [id, image] : checkpoint.render) {
    if (image.has_contents()) SLUICE_TRY(flattener.add(id, pages_of(image), image.dump_id));
  }
  return flattener.run();
}

}  // namespace sluice
