// SPDX-License-Identifier: MIT
// CRIU's --stream (criu/img-streamer.c of v3.17.1 to criu-dev, which agree): one connection to the image
// streamer for the whole tree, inherited by every task, a lock around each request, and every image, the
// host's own too, through a pipe.
//
// What a real streamer makes an image of that nobody can restore is a violation here: a name opened twice on
// dump; a file opened before the tasks are frozen, which the streamer reports as the checkpoint's start.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace sluice::lookalike {

// Connects to the streamer in the image directory and installs the service descriptor. -1: logged.
int stream_connect(const std::string& images, bool dump);
bool streams();
// Dump: the tasks stand still.
void stream_frozen();

// img_streamer_open: a descriptor, -ENOENT or -1. Aborts on flags that are not the run's, and without
// stream_connect().
int stream_open(const char* name, int flags);

// An image of the host's own, by openat() or from the streamer.
UniqueFd open_image(int directory, const std::string& name, int flags);

}  // namespace sluice::lookalike
