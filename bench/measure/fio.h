// SPDX-License-Identifier: MIT
// The disk as fio measures it, where that is installed: what RawDisk says must agree with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "measure/sample.h"
#include "measure/statistics.h"

namespace sluice::bench {

struct FioPlan {
  std::filesystem::path file;  // there, and in its fill state; its name with ".json" is written beside it
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = 0;
  std::uint32_t depth = 0;
};

bool have_fio();

// One job in RawDisk's shape: io_uring, direct, registered buffers, fsync inside the time. Errors: EIO when
// fio fails (it says why on stderr), EBADMSG.
Result<Sample> fio_write(const FioPlan& plan);
Result<Sample> fio_read(const FioPlan& plan);

// Whether rates whose ratio to fio's that is agree with them within 5 %, in words: the whole interval has to
// be there, else which side it is on.
std::string verdict_of(const Interval& ratio);

}  // namespace sluice::bench
