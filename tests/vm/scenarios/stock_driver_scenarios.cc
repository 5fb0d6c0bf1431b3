// SPDX-License-Identifier: MIT
// The virtual /dev/kfd against the true one: Debian's own amdgpu.ko makes a /dev/kfd even without a GPU
// (Linux 6.12; on 7.2 its open is refused, on 6.1 there is none), and what it answers is what the virtual one
// must answer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "kfd_questions.h"
#include "pipeline/unique_fd.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

// Where the guest keeps the stock driver and what it needs, with a file `order` that lists them; only where
// it is of use.
constexpr const char* kStockModules = "/usr/lib/stock-modules";

class StockDriver : public Scenario {
 protected:
  void load_stock() {
    std::ifstream order(std::string(kStockModules) + "/order");
    for (std::string name; std::getline(order, name);) {
      const UniqueFd file(::open((std::string(kStockModules) + "/" + name).c_str(), O_RDONLY | O_CLOEXEC));
      ASSERT_TRUE(file) << name;
      const long result = ::syscall(SYS_finit_module, file.get(), "", 0);
      ASSERT_TRUE(result == 0 || errno == EEXIST) << name << ": " << std::strerror(errno);
    }
  }
  void unload_stock() {
    ASSERT_EQ(::syscall(SYS_delete_module, "amdgpu", O_NONBLOCK), 0) << std::strerror(errno);
  }
};

// What differs for a reason: Debian builds Linux 6.12's driver without SVM.
const std::map<std::string, std::string>& without_svm() {
  static const std::map<std::string, std::string> answers = {
      {"SVM, no bytes", "EPERM"},          {"SVM, address not of a page", "EPERM"},
      {"SVM set, before any VM", "EPERM"}, {"SVM, op 9", "EPERM"},
      {"SET_XNACK_MODE, asked", "EPERM"},
  };
  return answers;
}

TEST_F(StockDriver, AnswersLikeTheVirtualOne) {
  if (!std::filesystem::exists(std::string(kStockModules) + "/order"))
    GTEST_SKIP() << "the stock driver of this kernel makes no /dev/kfd without a GPU";
  ASSERT_NO_FATAL_FAILURE(load_stock());
  const std::vector<KfdAnswer> stock = ask_kfd();
  ASSERT_NO_FATAL_FAILURE(unload_stock());
  forgive_kernel_log();  // the stock driver says why it refuses
  ASSERT_NO_FATAL_FAILURE(load());
  const std::vector<KfdAnswer> ours = ask_kfd();
  ASSERT_GT(stock.size(), 70u) << "the stock driver was not asked";
  ASSERT_EQ(stock.size(), ours.size());
  for (std::size_t i = 0; i < stock.size(); ++i) {
    ASSERT_EQ(stock[i].question, ours[i].question);
    const auto known = without_svm().find(stock[i].question);
    if (known != without_svm().end())
      EXPECT_EQ(stock[i].answer, known->second) << stock[i].question;
    else
      EXPECT_EQ(stock[i].answer, ours[i].answer) << stock[i].question;
  }
}

}  // namespace
}  // namespace sluice::vm_test
