// SPDX-License-Identifier: MIT
#include "plugin/sums.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "pipeline/units.h"
#include "sluice-sums.pb-c.h"

namespace sluice::plugin {

namespace {

constexpr char kAlgorithm[] = "XXH3-128";
constexpr std::uint64_t kLeastBlockBytes = 4 * kKiB;
constexpr std::uint64_t kMostBlockBytes = 64 * kMiB;

struct FreeSumsImage {
  void operator()(SumsImage* image) const { sums_image__free_unpacked(image, nullptr); }
};

ProtobufCBinaryData borrowed(std::span<const std::uint8_t> bytes) {
  return {bytes.size(), const_cast<std::uint8_t*>(bytes.data())};  // packing only reads
}

}  // namespace

DumpId random_dump_id() {
  DumpId id{};
  // Never fails for so few bytes once the system is up; if it did, the id stays zero and nothing is compared.
  if (getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) id = {};
  return id;
}

std::vector<std::uint8_t> pack_sidecar(const Sidecar& sidecar) {
  std::string algorithm = kAlgorithm;
  std::string pages_file = sidecar.pages_file;
  FileSums sums = FILE_SUMS__INIT;
  sums.algorithm = algorithm.data();
  sums.block_bytes = sidecar.table.block_bytes;
  sums.file_bytes = sidecar.table.file_bytes;
  sums.bo_table_digest = borrowed(sidecar.bo_table_digest);
  sums.dump_id = borrowed(sidecar.dump_id);
  sums.sums = borrowed({reinterpret_cast<const std::uint8_t*>(sidecar.table.sums.data()),
                        sidecar.table.sums.size() * sizeof(Sum128)});
  sums.pages_file = pages_file.data();
  FileSums* files[] = {&sums};
  SumsImage image = SUMS_IMAGE__INIT;
  image.n_files = 1;
  image.files = files;
  std::vector<std::uint8_t> payload(sums_image__get_packed_size(&image));
  (void)sums_image__pack(&image, payload.data());
  return payload;
}

Result<Sidecar> unpack_sidecar(std::span<const std::uint8_t> payload, const std::string& name) {
  const std::unique_ptr<SumsImage, FreeSumsImage> image(
      sums_image__unpack(nullptr, payload.size(), payload.data()));
  if (!image) return make_error(EBADMSG, name + " cannot be parsed; the sidecar is damaged");
  if (image->n_files != 1) return make_error(EBADMSG, name + " does not describe exactly one pages file");
  const FileSums& sums = *image->files[0];
  const bool blocks_ok = std::has_single_bit(sums.block_bytes) && sums.block_bytes >= kLeastBlockBytes &&
                         sums.block_bytes <= kMostBlockBytes;
  if (std::strcmp(sums.algorithm, kAlgorithm) != 0 || !blocks_ok) {
    return make_error(EBADMSG, name + " uses checksums this plugin does not know");
  }
  Sidecar sidecar;
  if (sums.bo_table_digest.len != sidecar.bo_table_digest.size() ||
      sums.dump_id.len != sidecar.dump_id.size() || sums.sums.len % sizeof(Sum128) != 0 ||
      sums.sums.len / sizeof(Sum128) != div_ceil(sums.file_bytes, sums.block_bytes)) {
    return make_error(EBADMSG, name + " contradicts itself; the sidecar is damaged");
  }
  sidecar.table.block_bytes = sums.block_bytes;
  sidecar.table.file_bytes = sums.file_bytes;
  sidecar.table.sums.resize(sums.sums.len / sizeof(Sum128));
  std::memcpy(sidecar.table.sums.data(), sums.sums.data, sums.sums.len);
  std::copy_n(sums.bo_table_digest.data, sidecar.bo_table_digest.size(), sidecar.bo_table_digest.begin());
  std::copy_n(sums.dump_id.data, sidecar.dump_id.size(), sidecar.dump_id.begin());
  sidecar.pages_file = sums.pages_file;
  return sidecar;
}

}  // namespace sluice::plugin
