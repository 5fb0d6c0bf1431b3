// SPDX-License-Identifier: MIT
#include "cli/check/report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/text.h"
#include "kfd/topology.h"
#include "proc/directory.h"
#include "settings/config.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMostOfALog = 8 * kMiB;  // its end
constexpr std::size_t kMostLines = 200, kLineBytes = 500;

// The last `most` bytes of a regular file; "" if it cannot be read.
std::string end_of(const std::string& path, std::size_t most) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes > most) (void)::lseek(fd.get(), static_cast<off_t>(bytes - most), SEEK_SET);
  std::string text(most, '\0');
  std::size_t done = 0;
  while (done < most) {
    const ssize_t got = ::read(fd.get(), text.data() + done, most - done);
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

std::string first_line(const std::string& path) {
  const std::string text = end_of(path, 4096);
  return printable(std::string_view(text).substr(0, text.find('\n')));
}

std::string versions_text() {
  utsname names{};
  (void)::uname(&names);
  std::string text = "versions\n  sluice " SLUICE_VERSION "\n  Linux " + std::string(names.release) + " " +
                     names.version + " " + names.machine + '\n';
  std::istringstream release(end_of("/usr/lib/os-release", 4096));
  for (std::string line; std::getline(release, line);) {
    if (line.starts_with("PRETTY_NAME=")) text += "  " + printable(line.substr(12)) + '\n';
  }
  return text;
}

std::string settings_text() {
  LogLines warnings;  // among the findings
  const settings::Lookup lookup = settings::environment_and_file(settings::kConfigFile, warnings);
  std::string text;
  for (const std::string& name : settings::setting_names()) {
    const auto value = lookup(name.c_str());
    if (value) text += "  " + name + "=" + printable(*value) + '\n';
  }
  return "settings that are not the default's, from the environment or " +
         std::string(settings::kConfigFile) + '\n' + (text.empty() ? "  none\n" : text);
}

// The lines "name value" of a file of properties, in lines of many.
std::string properties_text(const std::string& path, const std::string& indent) {
  std::istringstream file(end_of(path, 64 * kKiB));
  std::string text, line = indent;
  for (std::string name, value; file >> name >> value;) {
    if (name == "unique_id") continue;  // the GPU's serial number
    const std::string word = printable(name + "=" + value);
    if (line.size() + word.size() >= kColumns) {
      text += line + '\n';
      line = indent;
    }
    line += (line.size() == indent.size() ? "" : " ") + word;
  }
  return line.size() == indent.size() ? text : text + line + '\n';
}

std::string topology_text() {
  const std::string nodes = std::string(kfd::kTopologyPath) + "/nodes";
  const auto numbers = proc::numbered_entries(nodes);
  if (!numbers || numbers->empty()) return "topology\n  none here\n";
  std::string text = "topology\n";
  for (const int number : *numbers) {
    const std::string node = nodes + "/" + std::to_string(number);
    text += formatted("  node {}, gpu_id {}, {}\n", number, first_line(node + "/gpu_id"),
                      first_line(node + "/name"));
    text += properties_text(node + "/properties", "    ");
    const auto links = proc::numbered_entries(node + "/io_links");
    if (!links) continue;
    for (const int link : *links)
      text += properties_text(node + "/io_links/" + std::to_string(link) + "/properties", "    link: ");
  }
  return text;
}

// The lines of one log that tell of a fault.
std::string of_log(const std::string& path) {
  std::istringstream log(end_of(path, kMostOfALog));
  std::deque<std::string> lines;
  for (std::string line; std::getline(log, line);) {
    if (line.find("amdgpu_plugin") == std::string::npos && line.find("Error (") == std::string::npos)
      continue;
    lines.push_back("  " + printable(line.substr(0, kLineBytes)) + '\n');
    if (lines.size() > kMostLines) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += line;
  return text.empty() ? "" : "log " + printable(path) + '\n' + text;
}

std::string logs_text(const std::string& directory) {
  std::error_code error;
  std::set<std::string> paths;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".log") paths.insert(entry->path().string());
  }
  std::string text;
  for (const std::string& path : paths) text += of_log(path);
  return text.empty() ? "log\n  no *.log in " + printable(directory) + " has lines of the plugin\n" : text;
}

}  // namespace

std::string report_text(const std::string& findings, const std::string& directory) {
  return versions_text() + settings_text() + topology_text() + "check\n" + findings +
         (directory.empty() ? "log\n  none was named: --dir DIR takes the *.log of DIR\n"
                            : logs_text(directory));
}

}  // namespace sluice::cli
