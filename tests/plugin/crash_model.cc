// SPDX-License-Identifier: MIT
#include "crash_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace sluice::plugin_test {

using test::Bytes;
using test::Rng;

namespace {

constexpr std::uint64_t kBlock = 4096;

Bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  Bytes bytes(std::filesystem::file_size(path));
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
    throw std::runtime_error("cannot read " + path.string());
  return bytes;
}

void change(std::map<std::string, std::uint64_t>& names, const std::string& from, const std::string& to,
            std::uint64_t file) {
  if (!from.empty()) names.erase(from);
  if (!to.empty()) names[to] = file;
}

void write_into(Bytes& file, std::uint64_t offset, std::span<const std::byte> data) {
  if (file.size() < offset + data.size()) file.resize(offset + data.size());
  std::copy(data.begin(), data.end(), file.begin() + static_cast<long>(offset));
}

}  // namespace

std::vector<DiskEvent> read_disk_record(const std::filesystem::path& file) {
  const Bytes bytes = read_bytes(file);
  std::vector<DiskEvent> events;
  std::size_t at = 0;
  const auto take = [&](void* to, std::size_t count) {
    if (bytes.size() - at < count) throw std::runtime_error("the record is cut short");
    std::copy_n(bytes.data() + at, count, static_cast<std::byte*>(to));
    at += count;
  };
  while (at < bytes.size()) {
    DiskRecord record;
    take(&record, sizeof record);
    DiskEvent event{record.op, record.inode, record.offset, record.length, {}, {}, {}};
    event.name.resize(record.name_bytes);
    event.to.resize(record.to_bytes);
    event.data.resize(record.data_bytes);
    take(event.name.data(), event.name.size());
    take(event.to.data(), event.to.size());
    take(event.data.data(), event.data.size());
    events.push_back(std::move(event));
  }
  return events;
}

DurableDirectory read_durable(const std::filesystem::path& directory) {
  DurableDirectory durable;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("amdgpu-")) continue;
    struct stat st {};
    if (::stat(entry.path().c_str(), &st) != 0) throw std::runtime_error("cannot look at " + name);
    durable.names[name] = st.st_ino;
    durable.inodes[st.st_ino] = read_bytes(entry.path());
  }
  return durable;
}

CrashModel::CrashModel(DurableDirectory before) {
  for (auto& [inode, bytes] : before.inodes) (void)add_file(inode, std::move(bytes));
  for (const auto& [name, inode] : before.names) names_[name] = number_of_.at(inode);
  durable_names_ = names_;
}

CrashModel::FileNumber CrashModel::add_file(std::uint64_t inode, Bytes durable) {
  files_.push_back({std::move(durable), {}, 0});
  return number_of_[inode] = files_.size() - 1;
}

void CrashModel::change_name(NameChange next) {
  change(names_, next.from, next.to, next.file);
  next.at = events_;
  pending_names_.push_back(std::move(next));
}

// One that nobody knew was made just before.
CrashModel::File& CrashModel::file_of(const DiskEvent& event) {
  const auto number = number_of_.find(event.inode);
  const auto known = names_.find(event.name);
  if (number != number_of_.end() && known != names_.end() && known->second == number->second)
    return files_[number->second];
  const FileNumber added = add_file(event.inode, {});
  change_name({"", event.name, added});
  return files_[added];
}

void CrashModel::apply(const DiskEvent& event) {
  ++events_;
  switch (event.op) {
    case DiskOp::Write:
      file_of(event).pending.push_back({event.offset, 0, false, event.data, events_});
      break;
    case DiskOp::Truncate:
      file_of(event).pending.push_back({0, event.length, true, {}, events_});
      break;
    case DiskOp::SyncBegin:
      file_of(event).sync_began = events_;
      break;
    case DiskOp::SyncEnd: {
      File& file = file_of(event);
      const auto rest = std::find_if(file.pending.begin(), file.pending.end(),
                                     [&](const DataChange& one) { return one.at > file.sync_began; });
      for (auto one = file.pending.begin(); one != rest; ++one) {
        if (one->is_cut) {
          file.durable.resize(one->length);
        } else {
          write_into(file.durable, one->offset, one->data);
        }
      }
      file.pending.erase(file.pending.begin(), rest);
      break;
    }
    case DiskOp::DirectorySyncBegin:
      directory_sync_began_ = events_;
      break;
    case DiskOp::DirectorySyncEnd: {
      const auto rest = std::find_if(pending_names_.begin(), pending_names_.end(),
                                     [&](const NameChange& one) { return one.at > directory_sync_began_; });
      for (auto one = pending_names_.begin(); one != rest; ++one)
        change(durable_names_, one->from, one->to, one->file);
      pending_names_.erase(pending_names_.begin(), rest);
      break;
    }
    case DiskOp::Rename:
      change_name({event.name, event.to, names_.at(event.name)});
      break;
    case DiskOp::Unlink:
      change_name({event.name, "", 0});
      break;
  }
}

DirectoryState CrashModel::crash(Loss loss, Rng& rng) const {
  std::map<std::string, std::uint64_t> names = durable_names_;
  const std::size_t in_order = rng.between(0, pending_names_.size());
  const auto chance = static_cast<unsigned>(rng.between(10, 90));
  for (std::size_t i = 0; i < pending_names_.size(); ++i) {
    const bool lost = loss == Loss::Everything || (loss == Loss::InOrder && i >= in_order) ||
                      (loss == Loss::AnyOrder && rng.percent(chance));
    if (!lost) change(names, pending_names_[i].from, pending_names_[i].to, pending_names_[i].file);
  }
  const bool by_chance = loss == Loss::InOrder || loss == Loss::AnyOrder;
  const auto is_lost = [&] {
    return loss == Loss::Everything || loss == Loss::Data || (by_chance && rng.percent(chance));
  };
  DirectoryState state;
  for (const auto& [name, number] : names) {
    const File& file = files_.at(number);
    Bytes bytes = file.durable;
    for (const DataChange& one : file.pending) {
      if (one.is_cut) {
        if (!is_lost()) bytes.resize(one.length);
        continue;
      }
      for (std::uint64_t begin = 0; begin < one.data.size(); begin += kBlock) {
        if (is_lost()) continue;
        const std::uint64_t length = std::min<std::uint64_t>(kBlock, one.data.size() - begin);
        write_into(bytes, one.offset + begin, std::span(one.data).subspan(begin, length));
      }
    }
    state.emplace(name, std::move(bytes));
  }
  return state;
}

}  // namespace sluice::plugin_test
