#!/bin/sh
# SPDX-License-Identifier: MIT
# Compiles the sources given for another architecture, with its compiler's own C library and warnings as errors, to see
# that nothing in them is of x86-64 only. No object is kept.
#
#   cross_compile.sh COMPILER INCLUDE_DIR:INCLUDE_DIR:... SOURCE...
#
# Libraries' headers that are the same on every architecture come from the build machine, behind everything else.
# Exit status 77: the compiler is not installed.
set -u
compiler=$1
directories=$2
shift 2

if ! command -v "$compiler" > /dev/null; then
  echo "skipped: $compiler is not installed (Debian package: $(echo "$compiler" | sed 's/\(.*\)-g++/g++-\1/'))"
  exit 77
fi
# OpenSSL has a header for each architecture, which differ in nothing that is used here.
architecture_of_build="-idirafter /usr/include/$(g++ -print-multiarch)"
includes=$(echo "$directories" | sed 's/^/-I/; s/:/ -I/g')
failed=0
# Six at once, as scripts/build does: headers are most of the work.
while [ $# -gt 0 ]; do
  some=
  for _ in 1 2 3 4 5 6; do
    [ $# -gt 0 ] || break
    some="$some#include \"$1\"
"
    shift
  done
  # shellcheck disable=SC2086  # lists of words
  if ! echo "$some" | "$compiler" -std=c++20 -fsyntax-only -D_GNU_SOURCE -DSLUICE_VERSION='"cross"' -D_FILE_OFFSET_BITS=64 \
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wmissing-declarations -Wnon-virtual-dtor \
    -Wno-missing-field-initializers -Wno-subobject-linkage -Werror $includes -idirafter /usr/include $architecture_of_build -x c++ -; then
    echo "FAILED, one of: $some"
    failed=1
  fi
done
exit $failed
