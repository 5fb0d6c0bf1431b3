// SPDX-License-Identifier: MIT
// What a dump does about queues that a restore would not bring back whole (kfd/records/queue_records.h): it
// lets their kernels end, refuses, or warns.
#pragma once

#include "base/result.h"
#include "kfd/criu_ops.h"
#include "plugin/dump/contents/dump_contents.h"
#include "plugin/dump/files/kfd_file.h"

namespace sluice::plugin {

// `files` have been begun, and `sessions` are theirs. Where waves would be lost and `unread` is true, the
// queues of all processes run on and are stopped again, until no waves would be lost or the configured time
// is over. All tasks stay stopped meanwhile. A signal that ends the dump ends this, too. Does nothing in a
// pre-dump. Afterwards either all queues are stopped and checkpointed, or there is an error: EBUSY if waves
// would still be lost and the configuration does not allow it; those of PROCESS_INFO, CHECKPOINT and UNPAUSE;
// ECANCELED.
Result<void> settle_losses(const KfdFile::All& files, bool unread, kfd::UnpauseGuard& sessions,
                           const DumpRun& run);

// The same for one of them, without the wait. `waited`: what a refusal may advise.
Result<void> check_losses(KfdFile& file, bool waited, const DumpRun& run);

}  // namespace sluice::plugin
