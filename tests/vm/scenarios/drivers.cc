// SPDX-License-Identifier: MIT
#include "drivers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <vector>

#include "settings.h"
#include "stock_machine.h"

namespace sluice::vm_test {
namespace {

constexpr KernelVersion kEver{~0U, 0};
constexpr KernelVersion kListsHandles{6, 18};

constexpr const char* kPlaces =
    "its GPUs change places, and Linux locks /dev/kfd for good when a card is unbound";
constexpr const char* kInjected = "an ioctl of KFD or a copy is to fail";
constexpr const char* kIds = "the gpu_ids are chosen; those of a card follow from its place and size";
constexpr const char* kNoKfd = "the machine is to lose /dev/kfd, which AMD's driver keeps while it is loaded";
constexpr const char* kItself = "our module itself is tested";
constexpr const char* kState = "reads state of a process that the real driver shows nobody";
constexpr const char* kCrun = "crun restores before its device cgroup hides the other cards";
constexpr const char* kListing = "Linux lists the BOs of a render node since 6.18";
constexpr const char* kChanging = "no Linux up to 7.2 changes a GEM handle";

// What our module is for. `before`: on kernels older than that.
struct OnModule {
  const char* scenarios;  // one, or all that begin so: "Suite.*"
  const char* reason;
  KernelVersion before = kEver;
};

constexpr std::array kOnModule = {
    OnModule{"Client.RocminfoListsEveryMi300x", "the cards are MI210s"},
    OnModule{"DumpThatFails.KfdRefusesToStopTheQueues", kInjected},
    OnModule{"DumpThatFails.KfdRefusesTheCheckpoint", kInjected},
    OnModule{"DumpThatFails.CopyEngineReportsAnError", kInjected},
    OnModule{"RestoreThatFails.KfdRefusesTheRestore", kInjected},
    OnModule{"RestoreThatFails.KfdRefusesToResume", kInjected},
    OnModule{"RestoreThatFails.CopyEngineReportsAnError", kInjected},
    OnModule{"OfEngines/PodmanFailure.OfADumpLeavesTheJobRunning/*", kInjected},
    OnModule{"Tree.WhoseDumpFailsInOneProcessRunsOn", kInjected},
    OnModule{"Tree.OfWhichOneCannotBeResumedNeverRuns", kInjected},
    OnModule{"KilledCriu.BeforeARenderFilesMetadataHasItsNameLeavesNoCompleteImage", kListing, kListsHandles},
    OnModule{"RenderNodes.HandlesWithGapsComeBackByPlaceholders", kListing, kListsHandles},
    OnModule{"RenderNodes.HandlesWithGapsComeBackWhereTheKernelChangesThem", kChanging},
    OnModule{"RenderNodes.TwoFilesOfOneGpuKeepTheirOwn", kListing, kListsHandles},
    OnModule{"RenderNodes.AreAllThatAProcessHas", kListing, kListsHandles},
    OnModule{"RenderNodes.ManyBosComeBack", kListing, kListsHandles},
    OnModule{"RenderNodes.ComeBackOnOtherGpus", kListing, kListsHandles},
    OnModule{"RenderNodes.LeftRunningGoOn", kListing, kListsHandles},
    OnModule{"RenderNodes.BosOfTheKfdAreSharedWithRenderFilesOfTwoGpus", kListing, kListsHandles},
    OnModule{"RenderNodes.AnOpenDmaBufComesBack", kListing, kListsHandles},
    OnModule{"RenderNodes.BosOfARenderFileAreSharedWithOthers", kListing, kListsHandles},
    OnModule{"RenderNodes.TwoProcessesHaveTheSameMemoryAgain", kListing, kListsHandles},
    OnModule{"RenderNodes.MemoryIsImportedIntoTheKfdOfTheSameProcess", kListing, kListsHandles},
    OnModule{"RenderNodes.MemoryOfARenderFileIsImportedIntoTheKfd", kListing, kListsHandles},
    OnModule{"RenderNodes.MemoryIsImportedIntoTheKfdOfAnotherProcess", kListing, kListsHandles},
    OnModule{"By/OciRuntime.ContainerComesBackWhole/crun", kCrun},
    OnModule{"By/OciRuntime.OlderImageIsRestoredAfterANewerOne/crun", kCrun},
    OnModule{"OfEngines/PodmanArchive.RestoresAJobThatHasOneOfTwoGpus/crun", kCrun},
    OnModule{"OfEngines/PodmanOnOtherGpus.AJobWithBindMountsComesBack/crun", kCrun},
    OnModule{"MoreOfEngines/PodmanOptions.*", kCrun},
    OnModule{"MoreOfEngines/PodmanForms.*", kCrun},
    OnModule{"OfEngines/PodmanFailure.OfADamagedArchiveNamesTheBlock/crun", kCrun},
    OnModule{"By/RestoredAtOnce.EachLandsOnTheGpuThatItsOwnMapNames/crun", kCrun},
    OnModule{"By/RestoredAtOnce.WithoutMapsTheyDoNotChooseTheSameGpu/crun", kCrun},
    OnModule{"Large.ABoLargerThanFreeMemoryComesBackWhole", "a card's VRAM is none of the guest's memory"},
    OnModule{"Module.*", kItself},
    OnModule{"OnTheModule/DeviceTests.*", kItself},
    OnModule{"QuestionsToOurModule.*", kItself},
    OnModule{"OneProcessTwoGpus.KernelStateAfterRestoreIsTheOldOne", kState},
    OnModule{"OtherGpus.SwappedIds", kIds},
    OnModule{"OtherGpus.SwappedMinorsAndNodes", kPlaces},
    OnModule{"OtherGpus.AnotherModelIsRefusedWithATable", "the cards are MI210s"},
    OnModule{"OtherGpus.OtherNumaNodesAreRefusedAndTheSwitchAllowsThem", "the guest has one NUMA node"},
    OnModule{"WithoutGpu.AProcessOnAMachineWithoutKfdIsDumpedWithoutAWord", kNoKfd},
    OnModule{"WithoutGpu.AMachineWithoutKfdRefusesAGpuProcessAndSaysWhy", kNoKfd},
};

bool matches(std::string_view pattern, std::string_view scenario) {
  if (!pattern.ends_with('*')) return pattern == scenario;
  pattern.remove_suffix(1);
  return scenario.starts_with(pattern);
}

// All that were compiled in.
std::vector<std::string> scenarios() {
  std::vector<std::string> names;
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int s = 0; s < program.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *program.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t)
      names.push_back(std::string(suite.name()) + "." + suite.GetTestInfo(t)->name());
  }
  return names;
}

}  // namespace

Driver driver_of(std::string_view scenario) {
  static const bool cards = StockMachine::possible();
  if (!cards) return Driver::Module;
  for (const OnModule& entry : kOnModule) {
    if (matches(entry.scenarios, scenario) && kernel_version() < entry.before) return Driver::Module;
  }
  return Driver::Stock;
}

std::string filter_of_driver(const std::string& filter) {
  const std::string& wanted = settings().driver;
  if (wanted.empty()) return filter;
  const Driver driver = wanted == "stock" ? Driver::Stock : Driver::Module;
  std::string without;
  for (const std::string& name : scenarios()) {
    if (driver_of(name) != driver) without += ":" + name;
  }
  if (without.empty()) return filter;
  return filter.find('-') != std::string::npos ? filter + without : filter + "-" + without.substr(1);
}

bool list_drivers(std::ostream& out) {
  bool right = true;
  const std::vector<std::string> names = scenarios();
  std::size_t stock = names.size();
  std::vector<const OnModule*> left;
  left.reserve(kOnModule.size());
  for (const OnModule& entry : kOnModule) left.push_back(&entry);
  out << "| on our module, because | where | scenarios |\n|---|---|---|\n";
  while (!left.empty()) {
    const OnModule first = *left.front();
    const auto same = [&](const OnModule* entry) {
      return std::string_view(entry->reason) == first.reason && entry->before == first.before;
    };
    std::string row;
    for (const OnModule* entry : left) {
      if (!same(entry)) continue;
      const auto found =
          static_cast<std::size_t>(std::count_if(names.begin(), names.end(), [&](const std::string& name) {
            return matches(entry->scenarios, name);
          }));
      right &= found != 0;
      if (entry->before == kEver) stock -= found;
      row +=
          (row.empty() ? "" : ", ") + std::string(found == 0 ? "NO SUCH SCENARIO " : "") + entry->scenarios;
    }
    std::erase_if(left, same);
    out << "| " << first.reason << " | ";
    if (first.before == kEver)
      out << "everywhere";
    else
      out << "before Linux " << first.before.major << "." << first.before.minor;
    out << " | " << row << " |\n";
  }
  out << "\n"
      << names.size() << " scenarios, of which " << stock << " run on AMD's driver on the newest kernel.\n";
  return right;
}

}  // namespace sluice::vm_test
