// SPDX-License-Identifier: MIT
// Streams into an S3-compatible object store and out of it, through clients that people use: OpenStack Swift
// with its s3api (store.py), rclone and s3cmd. Skipped where Debian's packages python3-swift, rclone and
// s3cmd are not installed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>

#include "lookalike/harness.h"
#include "lookalike/test_streamer.h"
#include "plugin/plugin_test.h"
#include "support/flip_byte.h"

namespace sluice::object_store_test {
namespace {

using lookalike::Program;
using lookalike::ScratchDirectory;
using lookalike::Streamer;
using lookalike::Strings;
using plugin_test::SceneTest;

Strings own_environment() {
  Strings variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string(*variable).starts_with("AWS_")) variables.emplace_back(*variable);
  }
  return variables;
}

bool succeeds(const std::string& words) {
  Program program({"/bin/sh", "-c", words}, own_environment());
  return program.wait() == 0;
}

// One for all tests: it takes seconds to start.
class Store {
 public:
  static Store* instance() {
    static const std::unique_ptr<Store> store = make();
    return store.get();
  }
  ~Store() {
    program_.close_input();
    if (program_.started()) (void)program_.wait();
  }
  const std::string& address() const { return address_; }
  std::string host() const { return address_.substr(std::string("http://").size()); }

 private:
  // By Debian's python3, which has Debian's modules; PATH may have another one.
  static std::unique_ptr<Store> make() {
    if (!succeeds("/usr/bin/python3 -c 'import swift.obj.server, swift.common.middleware.s3api' 2>/dev/null"))
      return nullptr;
    std::unique_ptr<Store> store(new Store);
    store->program_ =
        Program({"/usr/bin/python3", "-B", STORE_PROGRAM, (store->directory_.path() / "store").string()},
                own_environment());
    const std::string line = store->program_.hear();
    EXPECT_TRUE(line.starts_with("ready http://")) << line;
    store->address_ = line.substr(std::min(line.size(), std::string("ready ").size()));
    return store;
  }

  ScratchDirectory directory_;  // with extended attributes, as most file systems on disks have
  Program program_;
  std::string address_;
};

// How a client is called, as shell words, with OBJECT for the object's name. Account and store come by
// variables of the shell.
struct Client {
  const char* name;
  const char* put;     // standard input becomes the object
  const char* get;     // the object goes to standard output
  const char* list;    // names of all objects
  const char* bucket;  // makes the bucket
};
// 5 MiB is the smallest part that S3 allows: what is dumped here has several.
constexpr Client kClients[] = {
    {"rclone", "rclone rcat --s3-chunk-size 5Mi store:bucket/OBJECT", "rclone cat store:bucket/OBJECT",
     "rclone lsf store:bucket", "rclone mkdir store:bucket"},
    {"s3cmd", "s3cmd -q -c $S3CFG --multipart-chunk-size-mb=5 put - s3://bucket/OBJECT",
     "s3cmd -q -c $S3CFG --no-progress get s3://bucket/OBJECT -", "s3cmd -c $S3CFG ls s3://bucket",
     "s3cmd -c $S3CFG mb s3://bucket"}};

void PrintTo(const Client& client, std::ostream* out) {
  *out << client.name;
}

class ObjectStoreTest : public SceneTest, public ::testing::WithParamInterface<Client> {
 protected:
  void SetUp() override {
    if (Store::instance() == nullptr) GTEST_SKIP() << "OpenStack Swift is not installed";
    if (!succeeds(std::string("command -v ") + GetParam().name + " >/dev/null"))
      GTEST_SKIP() << GetParam().name << " is not installed";
    std::ofstream(directory_.path() / "s3cfg")
        << "[default]\naccess_key = test:tester\nsecret_key = testing\nhost_base = "
        << Store::instance()->host() << "\nhost_bucket = " << Store::instance()->host()
        << "\nuse_https = False\nbucket_location = us-east-1\n";
    (void)succeeds(with_client(GetParam().bucket) + " >/dev/null 2>&1");  // may be there
  }

  std::string with_client(const std::string& words) const {
    const std::string rclone = "RCLONE_CONFIG_STORE_";
    std::string settings =
        "unset AWS_CA_BUNDLE; export RCLONE_CONFIG=" + (directory_.path() / "none").string() + " " + rclone +
        "TYPE=s3 " + rclone + "PROVIDER=Other " + rclone + "ACCESS_KEY_ID=test:tester " + rclone +
        "SECRET_ACCESS_KEY=testing " + rclone + "REGION=us-east-1 " + rclone +
        "ENDPOINT=" + Store::instance()->address() + "; ";
    settings += "export S3CFG=" + (directory_.path() / "s3cfg").string() + "; ";
    return settings + words;
  }
  static std::string with_object(std::string words, const std::string& object) {
    constexpr std::string_view kPlace = "OBJECT";
    return words.replace(words.find(kPlace), kPlace.size(), object) + " 2>/dev/null";
  }
  static std::string put_words(const std::string& object) { return with_object(GetParam().put, object); }
  static std::string get_words(const std::string& object) { return with_object(GetParam().get, object); }
  std::string put(const std::string& object) const { return with_client("$STREAMER | " + put_words(object)); }
  std::string get(const std::string& object) const { return with_client(get_words(object) + " | $STREAMER"); }

  int restore_from(const std::string& object) {
    Streamer streamer(scene_.images(), "serve", get(object));
    if (!streamer.ready()) return -1;
    const int status = scene_.restore(kVersion, {"--stream"});
    streamer.kill();
    return status;
  }
  void dump_to(const std::string& object) {
    Streamer streamer(scene_.images(), "capture", put(object));
    ASSERT_TRUE(streamer.ready());
    EXPECT_EQ(scene_.start_host(kVersion, "dump", {"--stream"}).wait(), 0) << scene_.log();
    ASSERT_EQ(streamer.wait(), 0);
  }
  bool is_there(const std::string& object) const {
    return succeeds(with_client(std::string(GetParam().list) + " | grep -q '" + object + "$'"));
  }

  static constexpr const char* kVersion = "4.2";
  ScratchDirectory directory_;
};

TEST_P(ObjectStoreTest, AProcessComesBackWholeOutOfAnObjectOfSeveralParts) {
  ASSERT_NO_FATAL_FAILURE(start({"--gpus", "2", "--svm-context"}));
  ASSERT_NO_FATAL_FAILURE(dump_to("whole"));
  EXPECT_TRUE(is_there("whole"));
  scene_.wait_until_subject_is_gone();
  ASSERT_EQ(restore_from("whole"), 0) << scene_.log();
  expect_whole();
}

// A client takes a stream that ends early for a whole object. Nothing is restored from it.
TEST_P(ObjectStoreTest, ADumpThatIsKilledInTheMiddleLeavesNothingThatIsRestored) {
  ASSERT_NO_FATAL_FAILURE(start({"--svm-context"}));
  Streamer streamer(scene_.images(), "capture", put("killed"));
  ASSERT_TRUE(streamer.ready());
  Program host = scene_.start_host(kVersion, "dump", {"--stream", "--hold", "dump_ext_file"});
  ASSERT_EQ(host.hear_control(), "dump_ext_file") << scene_.log();
  host.kill();
  (void)streamer.wait();
  scene_.subject().kill();
  (void)scene_.log();
  EXPECT_NE(restore_from("killed"), 0);
  EXPECT_EQ(scene_.control().criu_calls(kResume), 0U);
}

// One that is killed itself has put nothing: parts without an end are no object.
TEST_P(ObjectStoreTest, AClientThatIsKilledFailsTheDumpAndLeavesNoObject) {
  ASSERT_NO_FATAL_FAILURE(start({"--svm-context"}));
  const std::string pid = (directory_.path() / "pid").string();
  Streamer streamer(scene_.images(), "capture",
                    with_client("$STREAMER | { head -c 7000000; kill -9 $(cat " + pid +
                                "); } | sh -c 'echo $$ >" + pid + "; exec " + put_words("client") + "'"));
  ASSERT_TRUE(streamer.ready());
  EXPECT_NE(scene_.start_host(kVersion, "dump", {"--stream"}).wait(), 0);
  EXPECT_NE(streamer.wait(), 0);
  expect_running();
  EXPECT_FALSE(is_there("client"));
}

TEST_P(ObjectStoreTest, ABlockThatIsDamagedInTheStoreIsFoundBeforeAnythingRuns) {
  ASSERT_NO_FATAL_FAILURE(start({"--gpus", "1", "--svm-context"}));
  ASSERT_NO_FATAL_FAILURE(dump_to("good"));
  scene_.wait_until_subject_is_gone();
  const std::filesystem::path copy = directory_.path() / "copy";
  ASSERT_TRUE(succeeds(with_client(get_words("good") + " >" + copy.string())));
  test::flip_byte(copy, std::filesystem::file_size(copy) / 2);
  ASSERT_TRUE(succeeds(with_client(put_words("bad") + " <" + copy.string())));
  (void)scene_.log();
  EXPECT_NE(restore_from("bad"), 0);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("corrupt"), std::string::npos) << log;
  expect_not_resumed();
  ASSERT_EQ(restore_from("good"), 0) << scene_.log();
  expect_whole();
}

INSTANTIATE_TEST_SUITE_P(Through, ObjectStoreTest, ::testing::ValuesIn(kClients),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace sluice::object_store_test
