// SPDX-License-Identifier: MIT
// CRIU's service descriptors (log, image directory, fdstore ...): kept at high numbers, away from those of
// the tasks being restored; inherited by every task and closed by none before it runs. Numbers of enum
// sfd_type that all versions share: LOG 1, IMG 2, IMG_STREAMER 3, PROC 4. The fdstore's differs by version.
//
// And the fdstore: descriptors handed from any process of the restore to any other.
#pragma once

namespace sluice::lookalike {

enum ServiceFd : int { kLogFd = 1, kImageFd = 2, kStreamerFd = 3, kProcFd = 4 };

// Moves `fd` to its service place. Aborts when the place is taken, as CRIU does.
void install_service(int type, int fd);
void close_service(int type);
// Descriptor of a service, -1 when not installed. Aborts on a number this version does not know.
int service(int type);
bool is_service(int fd);
// Moves all services right below a multiple of 128 above `highest_task_fd`, with 16 free numbers between.
void relocate_services(int highest_task_fd);
int service_limit();  // first number above all services

// Before fdstore_init() both abort: CRIU dereferences NULL there.
void fdstore_init();
int fdstore_add_fd(int fd);  // id, or -1
int fdstore_get_fd(int id);  // new descriptor, or -1

}  // namespace sluice::lookalike
