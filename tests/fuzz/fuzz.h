// SPDX-License-Identifier: MIT
// What fuzz targets have in common. A target is one function that must return for any bytes: no crash, no
// endless loop, no memory that grows with a number in the input. It ends the process where the code under
// test breaks a promise.
//
// Each is built twice: with libFuzzer (scripts/fuzz), and with replay.cc, which goes through the corpus and
// seeded mutations of it in every test run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace sluice::fuzz {

// Something that an input can be taken for, to its end. Each target says what; replay.cc fails where no file
// of the corpus comes to one: mutations of what is refused at once test nothing. One for the process.
class Goal {
 public:
  explicit Goal(const char* what) : what_(what) { all().push_back(this); }
  Goal(const Goal&) = delete;
  Goal& operator=(const Goal&) = delete;

  void reach() { reached_ = true; }
  bool reached() const { return reached_; }
  const char* what() const { return what_; }

  static std::vector<Goal*>& all() {
    static std::vector<Goal*> goals;
    return goals;
  }

 private:
  const char* what_;
  bool reached_ = false;
};

}  // namespace sluice::fuzz

#define FUZZ_CHECK(condition)                                                             \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)
