// SPDX-License-Identifier: MIT
// What a dump does about queues that a restore would not bring back whole (kfd/records/queue_records.h): it
// lets their kernels end, refuses, or warns.
#pragma once

#include "plugin/dump/survey/kfd_survey.h"

namespace sluice::plugin {

// `files` have been begun. Where waves would be lost and the tree is unread, the queues of all processes run
// on and are stopped again, until no waves would be lost or the time is over. All tasks stay stopped
// meanwhile. A signal that ends the dump ends this, too. Afterwards either all queues are stopped and
// checkpointed, or there is an error: EBUSY if waves would still be lost and the configuration does not allow
// it; those of PROCESS_INFO, CHECKPOINT and UNPAUSE; ECANCELED.
Result<void> settle_losses(const KfdSurvey::All& files, const KernelWait& wait, const DumpBasis& basis,
                           const StoppedJob& job);

}  // namespace sluice::plugin
