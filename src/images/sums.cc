// SPDX-License-Identifier: MIT
#include "images/sums.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "images/files/digest.h"
#include "images/files/key.h"
#include "repeated.h"
#include "sluice-sums.pb-c.h"
#include "unpack_memory.h"

namespace sluice {

namespace {

constexpr std::uint64_t kLeastBlockBytes = 4 * kKiB;
constexpr std::uint64_t kMostBlockBytes = kSumBlockBytes;  // every chunk is a multiple of it

struct FreeSumsImage {
  void operator()(SumsImage* image) const { sums_image__free_unpacked(image, nullptr); }
};

ProtobufCBinaryData borrowed(std::span<const std::uint8_t> bytes) {
  return {bytes.size(), const_cast<std::uint8_t*>(bytes.data())};  // packing only reads
}

// How a sidecar names the method of its sums. Version 0.1 had the method's name alone, and a sum for each
// block of a file.
std::string algorithm_of(const SumMethod& method) {
  return std::string(method.name()) + "-units";
}

// Whether a file of that many bytes can have that many sums. Only the BO table gives the count
// (take_sidecar()); units are at most kSumUnitBytes long, and none is empty.
bool can_have(const FileSums& sums, std::uint64_t count) {
  return count >= div_ceil(sums.file_bytes, kSumUnitBytes) && count <= sums.file_bytes;
}

bool any_of(const std::vector<KnownRuns>& files) {
  return std::any_of(files.begin(), files.end(), [](const KnownRuns& runs) { return !runs.empty(); });
}

// REQUIRES: as many bytes.
bool equal_bytes(const ProtobufCBinaryData& bytes, std::span<const std::uint8_t> others) {
  return std::memcmp(bytes.data, others.data(), others.size()) == 0;
}

}  // namespace

namespace {

Result<void> fill_randomly(std::span<std::uint8_t> bytes, const char* purpose) {
  const ssize_t got = TEMP_FAILURE_RETRY(getrandom(bytes.data(), bytes.size(), 0));
  if (got == static_cast<ssize_t>(bytes.size())) return {};
  return make_error(got < 0 ? errno : EIO, std::string("random bytes for the ") + purpose);
}

}  // namespace

Result<DumpId> random_dump_id() {
  DumpId id{};
  SLUICE_TRY(fill_randomly(id, "dump's id"));
  return id;
}

Result<SumMethod> new_sum_method(const ImageKeys& keys) {
  if (keys.any()) return keys.contents();
  SumSecret secret;
  SLUICE_TRY(fill_randomly(secret.bytes, "secret of the checksums"));
  return SumMethod(secret);
}

Needs Sidecar::needs() const {
  Needs needs;
  for (std::size_t file = 0; file < tables.size(); ++file) {
    if (needs_parent(file)) needs.parent = parent_dump_id;
    needs.replicas = needs.replicas || needs_others(file);
  }
  return needs;
}

namespace {

Error damaged_sidecar(const std::string& what) {
  return Error{EBADMSG, what + ": the checksums are damaged; use another checkpoint [SL-I24]"};
}

// The five fields of a message that hold runs.
struct RunFields {
  std::size_t& n_files;
  char**& files;
  std::size_t& n_first;
  std::uint64_t*& first;
  std::size_t& n_units;
  std::uint64_t*& units;
  std::size_t& n_file;
  std::uint32_t*& file;
  std::size_t& n_offset;
  std::uint64_t*& offset;
};

RunFields parent_fields(FileSums& sums) {
  return {sums.n_parent_files,  sums.parent_files, sums.n_parent_first, sums.parent_first,
          sums.n_parent_units,  sums.parent_units, sums.n_parent_file,  sums.parent_file,
          sums.n_parent_offset, sums.parent_offset};
}

RunFields replica_fields(FileSums& sums) {
  return {sums.n_replica_files,  sums.replica_files, sums.n_replica_first, sums.replica_first,
          sums.n_replica_units,  sums.replica_units, sums.n_replica_file,  sums.replica_file,
          sums.n_replica_offset, sums.replica_offset};
}

// Runs in a message's form, valid during this object's life and theirs.
struct PackedRuns {
  PackedRuns(const KnownRuns& runs, const RunFields& fields) : names(pointers_to(runs.files)) {
    for (const KnownRun& run : runs.runs) {
      first.push_back(run.first_unit);
      units.push_back(run.units);
      file_of.push_back(run.file);
      offset.push_back(run.offset);
    }
    fields.n_files = names.size(), fields.files = names.data();
    fields.n_first = first.size(), fields.first = first.data();
    fields.n_units = units.size(), fields.units = units.data();
    fields.n_file = file_of.size(), fields.file = file_of.data();
    fields.n_offset = offset.size(), fields.offset = offset.data();
  }

  std::vector<char*> names;
  std::vector<std::uint64_t> first, units, offset;
  std::vector<std::uint32_t> file_of;
};

// For a file with `count` units. Nothing if no dump writes such runs.
std::optional<KnownRuns> unpack_runs(const RunFields& fields, std::uint64_t count) {
  KnownRuns runs;
  const std::size_t number = fields.n_first;
  if (fields.n_units != number || fields.n_file != number || fields.n_offset != number) return std::nullopt;
  runs.files.assign(fields.files, fields.files + fields.n_files);
  const auto has_path = [](const std::string& name) { return name.find('/') != name.npos; };
  if (std::any_of(runs.files.begin(), runs.files.end(), has_path)) return std::nullopt;
  std::uint64_t next = 1;  // the file's length is always its own
  for (std::size_t i = 0; i < number; ++i) {
    const KnownRun run{fields.first[i], fields.units[i], fields.file[i], fields.offset[i]};
    const bool in_order = run.first_unit >= next && run.first_unit < count && run.units > 0 &&
                          run.units <= count - run.first_unit;
    if (!in_order || run.file >= runs.files.size() || run.offset < kHeaderBytes || run.offset > INT64_MAX)
      return std::nullopt;
    next = run.first_unit + run.units;
    runs.runs.push_back(run);
  }
  return runs;
}

// Whether a unit is in both.
bool overlap(const KnownRuns& one, const KnownRuns& other) {
  auto its = other.runs.begin();
  for (const KnownRun& run : one.runs) {
    while (its != other.runs.end() && its->first_unit + its->units <= run.first_unit) ++its;
    if (its != other.runs.end() && its->first_unit < run.first_unit + run.units) return true;
  }
  return false;
}

// Nothing if no dump writes such a secret.
std::optional<SumMethod> method_of(const SumsImage& image, const ImageKeys& keys) {
  if (image.has_secret == 0) return keys.contents();
  SumSecret secret;
  if (keys.any() || image.secret.len != secret.bytes.size()) return std::nullopt;
  std::copy_n(image.secret.data, secret.bytes.size(), secret.bytes.begin());
  return SumMethod(secret);
}

}  // namespace

std::vector<std::uint8_t> pack_sidecar(const Sidecar& sidecar, const ImageKeys& keys) {
  std::vector<std::string> algorithms;
  for (const SumTable& table : sidecar.tables) algorithms.push_back(algorithm_of(table.method));
  const std::vector<char*> names = pointers_to(sidecar.pages_files);
  Repeated<FileSums> files(sidecar.tables.size());
  std::list<PackedRuns> runs;
  for (std::size_t i = 0; i < sidecar.tables.size(); ++i) {
    const SumTable& table = sidecar.tables[i];
    FileSums& sums = files.add(FILE_SUMS__INIT);
    sums.algorithm = algorithms[i].data();
    sums.block_bytes = table.block_bytes;
    sums.file_bytes = table.file_bytes;
    sums.bo_table_digest = borrowed(sidecar.bo_table_digest);
    sums.dump_id = borrowed(sidecar.dump_id);
    sums.sums = borrowed(
        {reinterpret_cast<const std::uint8_t*>(table.sums.data()), table.sums.size() * sizeof(Sum128)});
    sums.pages_file = names[i];
    if (!sidecar.parents.empty()) runs.emplace_back(sidecar.parents[i], parent_fields(sums));
    if (!sidecar.replicas.empty()) runs.emplace_back(sidecar.replicas[i], replica_fields(sums));
  }
  SumsImage image = SUMS_IMAGE__INIT;
  if (any_of(sidecar.parents)) {
    image.has_parent_dump_id = 1;
    image.parent_dump_id = borrowed(sidecar.parent_dump_id);
  }
  image.has_replicas_left_out = image.replicas_left_out = sidecar.needs().replicas ? 1 : 0;
  if (const SumSecret* const secret = sidecar.tables.front().method.secret()) {
    image.has_secret = 1;
    image.secret = borrowed(secret->bytes);
  }
  files.put(image.n_files, image.files);
  // Sums of a large GPU are many MiB: with room for the digest they are not copied again.
  const std::size_t packed_bytes = sums_image__get_packed_size(&image);
  std::vector<std::uint8_t> payload;
  payload.reserve(packed_bytes + kDigestFieldBytes);
  payload.resize(packed_bytes);
  (void)sums_image__pack(&image, payload.data());
  return with_digest(std::move(payload), MessageKind::Sums, keys);
}

Result<Sidecar> unpack_sidecar(std::vector<std::uint8_t> payload, const std::string& name,
                               const ImageKeys& keys) {
  SLUICE_TRY(require_digest(payload, MessageKind::Sums, name, keys));
  UnpackMemory memory(payload.size());
  const std::unique_ptr<SumsImage, FreeSumsImage> image(
      sums_image__unpack(memory.allocator(), payload.size(), payload.data()));
  memory.throw_if_process_had_none();
  std::vector<std::uint8_t>().swap(payload);  // before there is a third copy of all sums
  if (!image) return damaged_sidecar(name + " cannot be parsed");
  if (image->n_files == 0) return damaged_sidecar(name + " describes no pages file");
  const std::optional<SumMethod> known = method_of(*image, keys);
  if (!known) return damaged_sidecar(name + " contradicts itself");
  const SumMethod& method = *known;
  Sidecar sidecar;
  for (std::size_t i = 0; i < image->n_files; ++i) {
    FileSums& sums = *image->files[i];
    const bool blocks_ok = std::has_single_bit(sums.block_bytes) && sums.block_bytes >= kLeastBlockBytes &&
                           sums.block_bytes <= kMostBlockBytes;
    if (std::string_view(sums.algorithm) == method.name()) {
      return Error{ENOSYS, name + " is of sluice 0.1; restore it with 0.2, and dump again [SL-I96]"};
    }
    if (sums.algorithm != algorithm_of(method) || !blocks_ok) {
      return Error{EBADMSG,
                   name + " uses checksums that this version does not know; use a newer sluice [SL-I21]"};
    }
    const bool fits = sums.bo_table_digest.len == sidecar.bo_table_digest.size() &&
                      sums.dump_id.len == sidecar.dump_id.size() && sums.sums.len % sizeof(Sum128) == 0 &&
                      can_have(sums, sums.sums.len / sizeof(Sum128));
    if (fits && i == 0) {
      std::copy_n(sums.bo_table_digest.data, sidecar.bo_table_digest.size(), sidecar.bo_table_digest.begin());
      std::copy_n(sums.dump_id.data, sidecar.dump_id.size(), sidecar.dump_id.begin());
    }
    if (!fits || !equal_bytes(sums.bo_table_digest, sidecar.bo_table_digest) ||
        !equal_bytes(sums.dump_id, sidecar.dump_id)) {
      return damaged_sidecar(name + " contradicts itself");
    }
    const std::uint64_t count = sums.sums.len / sizeof(Sum128);
    std::optional<KnownRuns> parents = unpack_runs(parent_fields(sums), count);
    std::optional<KnownRuns> replicas = unpack_runs(replica_fields(sums), count);
    if (!parents || !replicas || overlap(*parents, *replicas))
      return damaged_sidecar(name + " contradicts itself");
    sidecar.parents.push_back(std::move(*parents));
    sidecar.replicas.push_back(std::move(*replicas));
    SumTable table{sums.block_bytes, sums.file_bytes, {}, method};
    table.sums.resize(sums.sums.len / sizeof(Sum128));
    if (!table.sums.empty()) std::memcpy(table.sums.data(), sums.sums.data, sums.sums.len);
    sidecar.tables.push_back(std::move(table));
    sidecar.pages_files.emplace_back(sums.pages_file);
  }
  const bool has_parent = image->has_parent_dump_id != 0 && image->parent_dump_id.len == sizeof(DumpId);
  sidecar.replicas_left_out = image->has_replicas_left_out != 0 && image->replicas_left_out != 0;
  if (any_of(sidecar.parents) != has_parent || (sidecar.replicas_left_out && !any_of(sidecar.replicas)))
    return damaged_sidecar(name + " contradicts itself");
  if (has_parent) {
    std::copy_n(image->parent_dump_id.data, sizeof(DumpId), sidecar.parent_dump_id.begin());
  } else {
    sidecar.parents.clear();
  }
  if (!any_of(sidecar.replicas)) sidecar.replicas.clear();
  return sidecar;
}

}  // namespace sluice
