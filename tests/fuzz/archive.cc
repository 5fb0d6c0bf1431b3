// SPDX-License-Identifier: MIT
// Archives that the command looks into: plain, packed, an image's layers, files with holes.
#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cli/checkpoint/archive_source.h"
#include "fuzz.h"

using namespace sluice;

namespace {

fuzz::Goal plain("a tar file with images");
fuzz::Goal layered("a layer with images");
fuzz::Goal with_holes("an image with holes");
fuzz::Goal streamed("contents");

UniqueFd file_of(const std::uint8_t* data, std::size_t size) {
  UniqueFd fd(::memfd_create("archive", MFD_CLOEXEC));
  FUZZ_CHECK(fd && ::write(fd.get(), data, size) == static_cast<ssize_t>(size));
  return fd;
}

void look_at(cli::ArchiveSource& source) {
  const std::vector<std::string> names = source.names().value();
  std::set<std::string> good;
  for (const std::string& name : names) {
    FUZZ_CHECK(name.find('/') == std::string::npos && !name.empty());
    const auto file = source.look(name);
    if (!file) continue;
    FUZZ_CHECK(file->stored_bytes <= file->bytes);
    FUZZ_CHECK(source.hole_bytes(name) == file->bytes - file->stored_bytes);
    if (source.hole_bytes(name) > 0) with_holes.reach();
    if (const auto bytes = source.read(name, 1 << 20)) FUZZ_CHECK(bytes->size() == file->bytes);
    if (file->bytes <= 1 << 20) good.insert(name);
  }
  std::set<std::string> taken;
  std::vector<std::byte> buffer(1 << 20);
  const auto done = source.stream(good, [&](const std::string& name, ByteStream& bytes) -> Result<void> {
    FUZZ_CHECK(good.contains(name) && taken.insert(name).second);
    const std::uint64_t size = source.look(name)->bytes;
    const std::uint64_t zeros = bytes.zeros_ahead(size);
    FUZZ_CHECK(zeros <= size);
    SLUICE_TRY(bytes.skip(zeros));
    SLUICE_TRY(bytes.read(std::span(buffer).first(static_cast<std::size_t>(size - zeros))));
    FUZZ_CHECK(!bytes.read(std::span(buffer).first(1)).ok());
    streamed.reach();
    return {};
  });
  FUZZ_CHECK(!done || taken == good);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto count = cli::ArchiveSource::open(file_of(data, size), "archive", nullptr);
  if (!count) {
    FUZZ_CHECK(count.error().err > 0 && !count.error().what.empty());
    return 0;
  }
  const std::vector<std::string> folders = (*count)->folders();
  for (std::size_t i = 0; i < folders.size() && i < 4; ++i) {
    (folders[i].starts_with("blobs/") ? layered : plain).reach();
    (*count)->choose(i);
    look_at(**count);
  }
  return 0;
}
