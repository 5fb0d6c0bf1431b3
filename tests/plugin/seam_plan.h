// SPDX-License-Identifier: MIT
// A plan that the plugin's calls go by (failure_points.h), in tests of which it is only a part. For programs
// that have SEAM_LIBRARY.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "failure_points.h"
#include "lookalike/harness.h"

namespace sluice::plugin_test {

using lookalike::Scene;
using lookalike::ScratchDirectory;

// In hosts of `scene` that are started while it lives; one at a time.
class SeamPlan {
 public:
  explicit SeamPlan(Scene& scene) : scene_(scene), plan_(file_) {
    scene_.variables[seam::kPlanVariable] = file_.string();
    (void)::setenv("LD_PRELOAD", SEAM_LIBRARY, 1);
  }
  ~SeamPlan() {
    (void)::unsetenv("LD_PRELOAD");
    scene_.variables.erase(seam::kPlanVariable);
  }
  SeamPlan(const SeamPlan&) = delete;
  SeamPlan& operator=(const SeamPlan&) = delete;

  FailurePlan* operator->() { return &plan_; }

  // For the next run: the first time that the last one made `call`, it fails. False: it made none.
  bool fail_first(const std::string& call) {
    std::size_t places = 0;
    for (const Failure& failure : plan_.failures(seam::kError, Turns::FirstAndMiddle, &places)) {
      if (failure.call != call) continue;
      plan_.arm(failure);
      return true;
    }
    return false;
  }

 private:
  Scene& scene_;
  const ScratchDirectory directory_;
  const std::filesystem::path file_ = directory_.path() / "plan";
  FailurePlan plan_;
};

}  // namespace sluice::plugin_test
