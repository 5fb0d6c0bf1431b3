// SPDX-License-Identifier: MIT
#include "images/sums.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/units.h"
#include "images/digest.h"
#include "images/key.h"
#include "sluice-sums.pb-c.h"
#include "unpack_memory.h"

namespace sluice {

namespace {

constexpr std::uint64_t kLeastBlockBytes = 4 * kKiB;
constexpr std::uint64_t kMostBlockBytes = kSumBlockBytes;  // of which every chunk is a multiple

struct FreeSumsImage {
  void operator()(SumsImage* image) const { sums_image__free_unpacked(image, nullptr); }
};

ProtobufCBinaryData borrowed(std::span<const std::uint8_t> bytes) {
  return {bytes.size(), const_cast<std::uint8_t*>(bytes.data())};  // packing only reads
}

// REQUIRES: as many bytes.
bool equal_bytes(const ProtobufCBinaryData& bytes, std::span<const std::uint8_t> others) {
  return std::memcmp(bytes.data, others.data(), others.size()) == 0;
}

}  // namespace

Result<DumpId> random_dump_id() {
  DumpId id{};
  const ssize_t got = TEMP_FAILURE_RETRY(getrandom(id.data(), id.size(), 0));
  if (got != static_cast<ssize_t>(id.size()))
    return make_error(got < 0 ? errno : EIO, "random bytes for the dump's id");
  return id;
}

std::uint64_t Sidecar::most_block_bytes() const {
  std::uint64_t most = 0;
  for (const SumTable& table : tables) most = std::max(most, table.block_bytes);
  return most;
}

std::vector<std::uint8_t> pack_sidecar(const Sidecar& sidecar) {
  std::string algorithm = contents_method().name();
  std::vector<std::string> names = sidecar.pages_files;
  std::vector<FileSums> sums(sidecar.tables.size());
  std::vector<FileSums*> files;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const SumTable& table = sidecar.tables[i];
    sums[i] = FILE_SUMS__INIT;
    sums[i].algorithm = algorithm.data();
    sums[i].block_bytes = table.block_bytes;
    sums[i].file_bytes = table.file_bytes;
    sums[i].bo_table_digest = borrowed(sidecar.bo_table_digest);
    sums[i].dump_id = borrowed(sidecar.dump_id);
    sums[i].sums = borrowed(
        {reinterpret_cast<const std::uint8_t*>(table.sums.data()), table.sums.size() * sizeof(Sum128)});
    sums[i].pages_file = names[i].data();
    files.push_back(&sums[i]);
  }
  SumsImage image = SUMS_IMAGE__INIT;
  image.n_files = files.size();
  image.files = files.data();
  std::vector<std::uint8_t> payload(sums_image__get_packed_size(&image));
  (void)sums_image__pack(&image, payload.data());
  return with_digest(std::move(payload), MessageKind::Sums);
}

Result<Sidecar> unpack_sidecar(std::span<const std::uint8_t> payload, const std::string& name) {
  SLUICE_TRY(require_digest(payload, MessageKind::Sums, name));
  UnpackMemory memory(payload.size());
  const std::unique_ptr<SumsImage, FreeSumsImage> image(
      sums_image__unpack(memory.allocator(), payload.size(), payload.data()));
  memory.throw_if_process_had_none();
  if (!image) return make_error(EBADMSG, name + " cannot be parsed; the sidecar is damaged");
  if (image->n_files == 0) return make_error(EBADMSG, name + " describes no pages file");
  const SumMethod method = contents_method();
  Sidecar sidecar;
  for (std::size_t i = 0; i < image->n_files; ++i) {
    const FileSums& sums = *image->files[i];
    const bool blocks_ok = std::has_single_bit(sums.block_bytes) && sums.block_bytes >= kLeastBlockBytes &&
                           sums.block_bytes <= kMostBlockBytes;
    if (std::strcmp(sums.algorithm, method.name()) != 0 || !blocks_ok) {
      return make_error(EBADMSG, name + " uses checksums that are not known here");
    }
    const bool fits = sums.bo_table_digest.len == sidecar.bo_table_digest.size() &&
                      sums.dump_id.len == sidecar.dump_id.size() && sums.sums.len % sizeof(Sum128) == 0 &&
                      sums.sums.len / sizeof(Sum128) == div_ceil(sums.file_bytes, sums.block_bytes);
    if (fits && i == 0) {
      std::copy_n(sums.bo_table_digest.data, sidecar.bo_table_digest.size(), sidecar.bo_table_digest.begin());
      std::copy_n(sums.dump_id.data, sidecar.dump_id.size(), sidecar.dump_id.begin());
    }
    if (!fits || !equal_bytes(sums.bo_table_digest, sidecar.bo_table_digest) ||
        !equal_bytes(sums.dump_id, sidecar.dump_id)) {
      return make_error(EBADMSG, name + " contradicts itself; the sidecar is damaged");
    }
    SumTable table{sums.block_bytes, sums.file_bytes, {}, method};
    table.sums.resize(sums.sums.len / sizeof(Sum128));
    if (!table.sums.empty()) std::memcpy(table.sums.data(), sums.sums.data, sums.sums.len);
    sidecar.tables.push_back(std::move(table));
    sidecar.pages_files.emplace_back(sums.pages_file);
  }
  return sidecar;
}

}  // namespace sluice
