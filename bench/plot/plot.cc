// SPDX-License-Identifier: MIT
#include "plot/plot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "base/unique_fd.h"
#include "measure/program.h"
#include "plot/figures.h"
#include "plot/saved.h"
#include "plot/saved_trace.h"
#include "plot/tables.h"
#include "plot/timeline.h"

namespace sluice::bench {
namespace {

// Runs gnuplot, script on stdin, with its stdout in `file`.
Result<void> draw(const std::string& script, const std::filesystem::path& file) {
  const UniqueFd in(::memfd_create("script", MFD_CLOEXEC));
  if (!in) return make_error(errno, "memfd_create");
  if (::pwrite(in.get(), script.data(), script.size(), 0) != static_cast<ssize_t>(script.size()))
    return make_error(errno, "a script for gnuplot");
  const UniqueFd svg(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!svg) return make_error(errno, file);
  const Result<int> status = run_program({"gnuplot"}, in.get(), svg.get());
  if (status && *status == 0) return {};
  (void)::unlink(file.c_str());
  if (!status && status.error().err == ENOENT)
    return Error{ENOENT, "figures need gnuplot: apt-get install gnuplot-nox"};
  if (!status) return status.error();
  return Error{EIO, "gnuplot could not draw " + file.filename().string()};
}

Result<void> make_directory(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return make_error(error.value(), path);
  return {};
}

Result<void> write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text;
  out.close();
  if (!out) return make_error(EIO, file);
  return {};
}

Result<void> fill_in(const Saved& saved, const std::filesystem::path& document) {
  errno = 0;
  std::ifstream in(document);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) return make_error(errno != 0 ? errno : EIO, document);
  return write_text(document, filled_in(text.str(), saved));
}

}  // namespace

Result<std::vector<std::string>> plot(const std::filesystem::path& file, const std::filesystem::path& out,
                                      const std::filesystem::path& document) {
  SLUICE_TRY_ASSIGN(const Saved saved, read_saved(file));
  SLUICE_TRY(make_directory(out));
  std::vector<std::string> written;
  if (document.empty()) {
    written.emplace_back("tables.md");
    SLUICE_TRY(write_text(out / written.back(), markdown_of(saved)));
  } else {
    SLUICE_TRY(fill_in(saved, document));
  }
  for (const Drawing& drawing : drawings(saved)) {
    written.push_back(drawing.name + ".svg");
    SLUICE_TRY(draw(drawing.script, out / written.back()));
  }
  return written;
}

Result<std::string> plot_trace(const std::filesystem::path& trace, const std::filesystem::path& out) {
  SLUICE_TRY_ASSIGN(const SavedTrace saved, read_trace(trace));
  SLUICE_TRY_ASSIGN(const Drawing drawing, timeline(saved, trace.stem()));
  SLUICE_TRY(make_directory(out));
  std::string name = drawing.name + ".svg";
  SLUICE_TRY(draw(drawing.script, out / name));
  return name;
}

}  // namespace sluice::bench
