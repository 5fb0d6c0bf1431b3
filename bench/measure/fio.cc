// SPDX-License-Identifier: MIT
#include "measure/fio.h"

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "measure/program.h"

namespace sluice::bench {
namespace {

constexpr double kAgreement = 0.05;

Result<Sample> run(const FioPlan& plan, const std::string& way) {
  const std::string report = plan.file.string() + ".json";
  // As in RawDisk: buffers in huge pages, requested by malloc and filled once. (In plain pages both lose a
  // third or more, depending on how scattered the pages are.) Completed blocks are resubmitted in one call;
  // the file is not registered and gets no advice; single blocks are not timed. Remaining differences: fio's
  // blocks do not begin at huge pages, and its ring defers task work.
  SLUICE_TRY_ASSIGN(const int status,
                    run_program({"env",
                                 "GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
                                 "fio",
                                 "--name=raw",
                                 "--filename=" + plan.file.string(),
                                 "--rw=" + way,
                                 "--size=" + std::to_string(plan.bytes),
                                 "--bs=" + std::to_string(plan.block_bytes),
                                 "--iodepth=" + std::to_string(plan.depth),
                                 "--iodepth_batch_submit=" + std::to_string(plan.depth),
                                 "--iodepth_batch_complete_min=1",
                                 "--iodepth_batch_complete_max=" + std::to_string(plan.depth),
                                 "--ioengine=io_uring",
                                 "--direct=1",
                                 "--fixedbufs=1",
                                 "--mem=malloc",
                                 "--iomem_align=2m",
                                 "--end_fsync=1",
                                 "--fallocate=none",
                                 "--invalidate=0",
                                 "--fadvise_hint=0",
                                 "--thread",
                                 "--gtod_reduce=1",
                                 "--scramble_buffers=0",
                                 "--output=" + report,
                                 "--output-format=json"}));
  if (status != 0) return make_error(EIO, "fio: exit status " + std::to_string(status));
  std::ifstream text(report);
  try {
    const nlohmann::json job = nlohmann::json::parse(text).at("jobs").at(0);
    Sample sample;
    sample.bytes = job.at(way).at("io_bytes");
    sample.seconds = job.at(way).at("runtime").get<double>() / 1e3;
    if (sample.bytes != plan.bytes) return make_error(EBADMSG, "fio moved another number of bytes");
    return sample;
  } catch (const nlohmann::json::exception& error) {
    return make_error(EBADMSG, std::string("fio's report: ") + error.what());
  }
}

}  // namespace

bool have_fio() {
  const auto status = run_program({"fio", "--version"});
  return status && *status == 0;
}

std::string verdict_of(const Interval& ratio) {
  const auto within = [](double value) { return value >= 1 - kAgreement && value <= 1 + kAgreement; };
  if (within(ratio.low) && within(ratio.high)) return "within 5 % of fio's";
  if (within(ratio.value)) return "the median is within 5 % of fio's, its interval is not";
  const std::string side = ratio.value > 1 ? "above" : "below";
  const bool wholly = !within(ratio.low) && !within(ratio.high) && (ratio.low > 1) == (ratio.high > 1);
  return "not within 5 % of fio's: " + side + (wholly ? "" : ", except for a part of the interval");
}

Result<Sample> fio_write(const FioPlan& plan) {
  return run(plan, "write");
}

Result<Sample> fio_read(const FioPlan& plan) {
  return run(plan, "read");
}

}  // namespace sluice::bench
