// SPDX-License-Identifier: MIT
// The disk as measured by fio, if installed: RawDisk's figures must agree.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "measure/sample.h"
#include "measure/statistics.h"

namespace sluice::bench {

struct FioPlan {
  std::filesystem::path file;  // exists, in its fill state; its name with ".json" is written beside it
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t depth = 0;
};

bool have_fio();

// One job like RawDisk's: io_uring, direct, registered buffers, fsync included in the time. Errors: EIO if
// fio fails (it prints the reason on stderr), EBADMSG.
Result<Sample> fio_write(const FioPlan& plan);
Result<Sample> fio_read(const FioPlan& plan);

// Whether rates with that ratio to fio's agree within 5 %, in words: the whole interval must be there, else
// the text names the side.
std::string verdict_of(const Interval& ratio);

}  // namespace sluice::bench
