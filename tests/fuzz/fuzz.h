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

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

#define FUZZ_CHECK(condition)                                                             \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)
