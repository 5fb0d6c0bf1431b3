// SPDX-License-Identifier: MIT
// A topology in sysfs. The input is a text: a line "@nodes/1/properties" begins that file, what follows is in
// it.
#include "kfd/topology.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "fuzz.h"

namespace fs = std::filesystem;

namespace {

sluice::fuzz::Goal machine("a topology of GPUs with memory, linked both ways");

// One for the process, which the fuzzer ends without a destructor: emptied before each input.
fs::path folder() {
  static const fs::path path = [] {
    std::string name = (fs::temp_directory_path() / "fuzz-topology-XXXXXX").string();
    FUZZ_CHECK(::mkdtemp(name.data()) != nullptr);
    return fs::path(name);
  }();
  return path;
}

// No way out of the folder.
bool is_plain(const std::string& name) {
  const fs::path path(name);
  return !name.empty() && name.size() < 200 && path.is_relative() &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; }) &&
         name.find('\0') == std::string::npos;
}

void build(const std::string& text) {
  for (const auto& entry : fs::directory_iterator(folder())) fs::remove_all(entry.path());
  std::istringstream in(text);
  std::ofstream file;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with('@')) {
      if (file.is_open()) file << line << '\n';
      continue;
    }
    file.close();
    if (!is_plain(line.substr(1))) continue;
    std::error_code error;
    fs::create_directories((folder() / line.substr(1)).parent_path(), error);
    if (!error) file.open(folder() / line.substr(1));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  build(std::string(reinterpret_cast<const char*>(data), size));
  const auto topology = sluice::kfd::read_topology(folder());
  if (!topology) {
    FUZZ_CHECK(topology.error().err > 0 && !topology.error().what.empty());
    return 0;
  }
  std::set<std::uint32_t> node_ids, gpu_ids;
  for (const sluice::kfd::Node& node : topology->nodes) {
    FUZZ_CHECK(node_ids.insert(node.node_id).second);
    FUZZ_CHECK(!node.is_gpu() || gpu_ids.insert(node.gpu_id).second);
    for (const sluice::kfd::IoLink& link : node.links) {
      if (topology->bidirectional(node, link) && node.is_gpu() && node.vram_size > 0) machine.reach();
    }
  }
  return 0;
}
