// SPDX-License-Identifier: MIT
#include "corruption/damage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/unique_fd.h"
#include "base/units.h"
#include "corruption/basics.h"

namespace sluice::corruption_test {

using test::Bytes;
using test::Rng;

namespace {

constexpr std::uint64_t kLengthBytes = 8;

using Places = std::vector<Place>;

// One file of the victim, opened to be damaged.
struct Target {
  std::string name;
  const FileCopy& copy;
  UniqueFd fd;

  std::uint64_t bytes() const { return copy.bytes.size(); }
  void write(std::uint64_t at, std::span<const std::byte> bytes_to_write) const {
    check(::pwrite(fd.get(), bytes_to_write.data(), bytes_to_write.size(), static_cast<off_t>(at)) ==
              static_cast<ssize_t>(bytes_to_write.size()),
          name);
  }
  void resize(std::uint64_t to) const { check(::ftruncate(fd.get(), static_cast<off_t>(to)) == 0, name); }
  std::span<const std::byte> part(std::uint64_t begin, std::uint64_t end) const {
    return std::span(copy.bytes).subspan(begin, end - begin);
  }
};

Target open_target(const Victim& victim, const std::string& name) {
  return {name, victim.now.files().at(name),
          UniqueFd(::openat(victim.dir_fd, name.c_str(), O_RDWR | O_CLOEXEC))};
}

std::string any_name(const DirectoryCopy& files, Rng& rng) {
  return std::next(files.files().begin(), static_cast<long>(rng.between(0, files.files().size() - 1)))->first;
}

Target any_target(const Victim& victim, Rng& rng) {
  return open_target(victim, any_name(victim.now, rng));
}

// A whole unit of a file that is that long, or as much as there is.
Place any_unit(const Target& target, std::uint64_t unit, Rng& rng) {
  const std::uint64_t begin = rng.between(0, (target.bytes() - 1) / unit) * unit;
  return {target.name, begin, std::min(begin + unit, target.bytes())};
}

// What disks and file systems move as one.
std::uint64_t any_unit_bytes(Rng& rng) {
  return std::uint64_t{512} << rng.between(0, 7);
}

Bytes filling(std::uint64_t bytes, Rng& rng) {
  Bytes with(static_cast<std::size_t>(bytes), rng.percent(30) ? std::byte{0xff} : std::byte{0});
  if (rng.percent(50)) rng.fill(with);
  return with;
}

Places flip_bits(const Victim& victim, Rng& rng, std::uint64_t count) {
  const Target target = any_target(victim, rng);
  Places places;
  Bytes bytes = target.copy.bytes;
  for (; count > 0; --count) {
    const std::uint64_t at =
        rng.percent(10) ? rng.between(0, kLengthBytes - 1) : rng.between(0, target.bytes() - 1);
    bytes[at] ^= std::byte{1} << rng.between(0, 7);
    target.write(at, std::span(bytes).subspan(at, 1));
    places.push_back({target.name, at, at + 1});
  }
  return places;
}

Places one_bit(const Victim& victim, Rng& rng) {
  return flip_bits(victim, rng, 1);
}
Places many_bits(const Victim& victim, Rng& rng) {
  return flip_bits(victim, rng, rng.between(2, 64));
}

Places overwritten(const Victim& victim, Rng& rng) {
  const Target target = any_target(victim, rng);
  const std::uint64_t begin = rng.between(0, target.bytes() - 1);
  const std::uint64_t bytes = rng.between(1, std::min(target.bytes() - begin, 2 * kPage));
  target.write(begin, filling(bytes, rng));
  return {{target.name, begin, begin + bytes}};
}

Places swapped_chunks(const Victim& victim, Rng& rng) {
  const std::uint64_t unit = any_unit_bytes(rng);
  const Target one = any_target(victim, rng);
  const Target other = rng.percent(60) ? open_target(victim, one.name) : any_target(victim, rng);
  Place first = any_unit(one, unit, rng);
  Place second = any_unit(other, unit, rng);
  const std::uint64_t bytes = std::min(first.end - first.begin, second.end - second.begin);
  first.end = first.begin + bytes;
  second.end = second.begin + bytes;
  one.write(first.begin, other.part(second.begin, second.end));
  other.write(second.begin, one.part(first.begin, first.end));
  return {first, second};
}

Places misdirected_chunk(const Victim& victim, Rng& rng) {
  const std::uint64_t unit = any_unit_bytes(rng);
  const Target to = any_target(victim, rng);
  const Target from = rng.percent(60) ? open_target(victim, to.name) : any_target(victim, rng);
  Place place = any_unit(to, unit, rng);
  const Place source = any_unit(from, unit, rng);
  place.end = std::min(place.end, place.begin + (source.end - source.begin));
  to.write(place.begin, from.part(source.begin, source.begin + (place.end - place.begin)));
  return {place};
}

Places stale_chunk(const Victim& victim, Rng& rng) {
  const Target target = any_target(victim, rng);
  const auto older = victim.older.files().find(target.name);
  if (older == victim.older.files().end()) return {};
  Place place = any_unit(target, any_unit_bytes(rng), rng);
  place.end = std::min<std::uint64_t>(place.end, older->second.bytes.size());
  if (place.begin >= place.end) return {};
  target.write(place.begin, std::span(older->second.bytes).subspan(place.begin, place.end - place.begin));
  return {place};
}

Places lost_pages(const Victim& victim, Rng& rng) {
  const Target target = any_target(victim, rng);
  const Place place = any_unit(target, kPage << rng.between(0, 4), rng);
  check(::fallocate(target.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(place.begin), static_cast<off_t>(place.end - place.begin)) == 0,
        target.name);
  return {place};
}

Places truncated(const Victim& victim, Rng& rng) {
  const Target target = any_target(victim, rng);
  std::uint64_t to = rng.between(0, target.bytes() - 1);
  if (rng.percent(30)) to = align_down(to, kPage);
  target.resize(to);
  return {{target.name, to, Place::kToTheEnd}};
}

Places extra_bytes(const Victim& victim, Rng& rng) {
  const Target target = any_target(victim, rng);
  target.write(target.bytes(), filling(rng.between(1, 2 * kPage), rng));
  return {{target.name, target.bytes(), Place::kToTheEnd}};
}

Places torn_tail(const Victim& victim, Rng& rng) {
  const Target target = any_target(victim, rng);
  const std::uint64_t begin = target.bytes() - rng.between(1, std::min(target.bytes(), 2 * kPage));
  Bytes tail = filling(target.bytes() - begin, rng);
  const auto older = victim.older.files().find(target.name);
  if (rng.percent(30) && older != victim.older.files().end() && older->second.bytes.size() >= target.bytes())
    std::copy_n(older->second.bytes.begin() + static_cast<long>(begin), tail.size(), tail.begin());
  target.write(begin, tail);
  return {{target.name, begin, target.bytes()}};
}

void write_length(const Target& target, std::uint64_t length) {
  target.write(0, std::as_bytes(std::span(&length, 1)));
}

Places lying_header(const Victim& victim, Rng& rng) {
  const Target target = any_target(victim, rng);
  const std::uint64_t length = target.bytes() - kLengthBytes;
  const std::array<std::uint64_t, 8> lies{0,          length + 1, length - 1,     length + kPage,
                                          UINT64_MAX, rng.next(), length ^ kPage, target.bytes()};
  write_length(target, lies[rng.between(0, lies.size() - 1)]);
  return {{target.name, 0, kLengthBytes}};
}

// Cut, and with a header that says so.
Places cut_with_header(const Victim& victim, Rng& rng) {
  const Target target = any_target(victim, rng);
  const std::uint64_t to = rng.between(kLengthBytes, target.bytes());
  target.resize(to);
  write_length(target, to - kLengthBytes);
  return {{target.name, 0, Place::kToTheEnd}};
}

// Of files of two dumps any one is of the wrong dump, as seen from another.
Places all_files(const Victim& victim) {
  Places places;
  for (const auto& [name, copy] : victim.now.files()) places.push_back({name});
  for (const auto& [name, copy] : victim.older.files()) {
    if (!victim.now.files().contains(name)) places.push_back({name});
  }
  return places;
}

Places one_file_of_an_older_dump(const Victim& victim, Rng& rng) {
  const std::string name = any_name(victim.older, rng);
  victim.older.put_back(victim.dir_fd, name);
  const bool says_what_others_are = name.starts_with("amdgpu-kfd-") || name.starts_with("amdgpu-renderD-");
  return says_what_others_are ? all_files(victim) : Places{{name}};
}

Places mixed_dumps(const Victim& victim, Rng& rng) {
  const auto chance = static_cast<unsigned>(rng.between(10, 90));
  for (const auto& [name, copy] : victim.older.files()) {
    if (rng.percent(chance)) victim.older.put_back(victim.dir_fd, name);
  }
  return all_files(victim);
}

Places swapped_files(const Victim& victim, Rng& rng) {
  const std::string one = any_name(victim.now, rng);
  const std::string other = any_name(victim.now, rng);
  check(::renameat2(victim.dir_fd, one.c_str(), victim.dir_fd, other.c_str(),
                    one == other ? 0 : RENAME_EXCHANGE) == 0,
        one);
  if (one == other) return {};
  return {{one}, {other}};
}

Places missing_file(const Victim& victim, Rng& rng) {
  const std::string name = any_name(victim.now, rng);
  check(::unlinkat(victim.dir_fd, name.c_str(), 0) == 0, name);
  return {{name}};
}

// What a copy does that takes what differs and has lost what could tell: pages of an older dump, and no sums
// beside them.
Places lost_sidecar_and_stale_pages(const Victim& victim, Rng& rng) {
  const KnownSet& one = victim.known.sets[rng.between(0, victim.known.sets.size() - 1)];
  const std::string sidecar = one.set.sums_name(one.id);
  check(::unlinkat(victim.dir_fd, sidecar.c_str(), 0) == 0, sidecar);
  Places places{{sidecar}};
  for (const std::string& pages : one.set.pages_names(one.id)) {
    if (!victim.older.files().contains(pages)) continue;
    victim.older.put_back(victim.dir_fd, pages);
    places.push_back({pages});
  }
  return places;
}

// Metadata of an older dump under a number that this one has not used.
Places left_over_metadata(const Victim& victim, Rng& rng) {
  static constexpr std::array<const char*, 3> kPrefixes{"amdgpu-kfd-", "amdgpu-renderD-", "amdgpu-dmabuf_"};
  const std::string prefix = kPrefixes[rng.between(0, kPrefixes.size() - 1)];
  const auto file = victim.older.files().lower_bound(prefix);
  if (file == victim.older.files().end() || !file->first.starts_with(prefix)) return {};
  const std::string left = prefix + "77.img";
  const UniqueFd fd(::openat(victim.dir_fd, left.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const Bytes& bytes = file->second.bytes;
  check(fd && ::write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), left);
  return {{left}};
}

// What a copy tool does that knows no holes.
Places filled_holes(const Victim& victim, Rng& rng) {
  const Target target = any_target(victim, rng);
  target.write(0, target.copy.bytes);
  return {{target.name}};
}

struct Kind {
  const char* name;
  Places (*spoil)(const Victim&, Rng&);
  bool harmless = false;
};

constexpr std::array<Kind, 19> kKinds{{{"one bit", one_bit},
                                       {"many bits", many_bits},
                                       {"overwritten", overwritten},
                                       {"swapped chunks", swapped_chunks},
                                       {"misdirected chunk", misdirected_chunk},
                                       {"stale chunk", stale_chunk},
                                       {"lost pages", lost_pages},
                                       {"truncated", truncated},
                                       {"extra bytes", extra_bytes},
                                       {"torn tail", torn_tail},
                                       {"lying header", lying_header},
                                       {"cut with header", cut_with_header},
                                       {"one file of an older dump", one_file_of_an_older_dump},
                                       {"mixed dumps", mixed_dumps},
                                       {"swapped files", swapped_files},
                                       {"missing file", missing_file},
                                       {"lost sidecar, stale pages", lost_sidecar_and_stale_pages},
                                       {"left-over metadata", left_over_metadata},
                                       {"filled holes", filled_holes, true}}};

}  // namespace

Damage do_damage(const Victim& victim, Rng& rng) {
  return do_damage(victim, rng.between(0, kKinds.size() - 1), rng);
}

Damage do_damage(const Victim& victim, std::size_t kind, Rng& rng) {
  return {kKinds[kind].name, kKinds[kind].spoil(victim, rng), kKinds[kind].harmless};
}

std::vector<std::string> damage_kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

}  // namespace sluice::corruption_test
