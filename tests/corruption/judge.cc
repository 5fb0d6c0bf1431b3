// SPDX-License-Identifier: MIT
#include "corruption/judge.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "pipeline/layout.h"

namespace sluice::corruption_test {

namespace {

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The same of a text that ends in a number: another that begins with it is not the one.
bool says_number(const std::string& text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0) return true;
  }
  return false;
}

// The first BO in [begin, end) of a pages file and where in it that is, by adding up sizes; null: only the
// file's length lies there.
const PagesBo* bo_at(const KnownSet& one, std::uint32_t file, std::uint64_t begin, std::uint64_t end,
                     std::uint64_t& bo_offset) {
  std::uint64_t bo_begin = kHeaderBytes;
  const std::size_t first = one.set.drm_minor ? file : 0;
  const std::size_t last = one.set.drm_minor ? file + 1 : one.set.bos.size();
  for (std::size_t i = first; i < last; ++i) {
    const std::uint64_t bo_end = bo_begin + one.set.bos[i].bytes;
    if (begin < bo_end && end > bo_begin) {
      bo_offset = std::max(begin, bo_begin) - bo_begin;
      return &one.set.bos[i];
    }
    bo_begin = bo_end;
  }
  return nullptr;
}

// "GPU 0x5759" or "renderD129".
std::string owner_of(const KnownSet& one) {
  std::array<char, 32> text{};
  if (one.set.drm_minor) {
    (void)std::snprintf(text.data(), text.size(), "renderD%u", *one.set.drm_minor);
  } else {
    (void)std::snprintf(text.data(), text.size(), "GPU 0x%04x", one.set.gpu_id);
  }
  return text.data();
}

// The numbers of "file range [a, b)" or "read NAME [a, b)".
bool range_in(const std::string& text, std::uint64_t& begin, std::uint64_t& end) {
  const std::size_t bracket = text.find('[');
  if (bracket == std::string::npos) return false;
  char* rest = nullptr;
  begin = std::strtoull(&text[bracket + 1], &rest, 10);
  if (*rest != ',') return false;
  end = std::strtoull(rest + 1, &rest, 10);
  return *rest == ')';
}

}  // namespace

bool names_damage(const Error& error, const std::vector<Place>& places, const KnownCheckpoint& known,
                  std::uint64_t block_bytes) {
  return std::any_of(places.begin(), places.end(), [&](const Place& place) {
    if (!says(error.what, place.file)) return false;
    std::uint32_t file = 0;
    const KnownSet* const one = known.set_of(place.file, file);
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    if (!range_in(error.what, begin, end) || says(error.what, " of the image stream: "))
      return one == nullptr || place.end == Place::kToTheEnd;
    if (one == nullptr || begin >= place.end || end <= place.begin) return false;
    if (says(error.what, "is corrupt") && end - begin > block_bytes) return false;
    std::uint64_t bo_offset = 0;
    const PagesBo* const bo = bo_at(*one, file, begin, end, bo_offset);
    const std::string where =
        bo == nullptr ? std::string("its length") : "BO " + std::to_string(bo->number) + " (VA ";
    const std::string offset = bo == nullptr ? "" : " from its byte " + std::to_string(bo_offset);
    return says_number(error.what, owner_of(*one)) && says(error.what, where) &&
           says_number(error.what, offset);
  });
}

Verified verify(int dir_fd, std::uint64_t chunk_bytes) {
  const DirectorySource source(dir_fd);
  const auto checkpoint = read_checkpoint(source);
  if (!checkpoint) return {};
  const auto verification =
      std::move(Verification::start(source, *checkpoint, VerifyOptions{chunk_bytes, 2})).value();
  while (!verification->wait_for(std::chrono::hours(1))) {
  }
  return {verification->take_problems(), verification->totals().bytes};
}

bool names_damage(const VerifyProblem& problem, const std::vector<Place>& places,
                  const KnownCheckpoint& known, std::uint64_t block_bytes) {
  if (problem.kind == ProblemKind::BadBlock && problem.length > block_bytes) return false;
  return std::any_of(places.begin(), places.end(), [&](const Place& place) {
    if (problem.length == 0) return problem.file == place.file || says(problem.what, place.file);
    std::uint32_t file = 0;
    const KnownSet* const one = known.set_of(place.file, file);
    const std::uint64_t end = problem.file_offset + problem.length;
    if (one == nullptr || problem.file != place.file || problem.owner != owner_of(*one) ||
        problem.file_offset >= place.end || end <= place.begin)
      return false;
    std::uint64_t bo_offset = 0;
    const PagesBo* const bo = bo_at(*one, file, problem.file_offset, end, bo_offset);
    if (bo == nullptr) return !problem.place.bo;
    return problem.place.bo && problem.place.bo->number == bo->number && problem.place.bo_offset == bo_offset;
  });
}

}  // namespace sluice::corruption_test
