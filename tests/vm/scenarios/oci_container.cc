// SPDX-License-Identifier: MIT
#include "oci_container.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "container.h"
#include "settings.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kControlOfBundle = "/control";
constexpr const char* kConfiguration = "config.json";

struct Node {
  std::string path;
  dev_t device = 0;
};

Node node_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw std::system_error(errno, std::generic_category(), path);
  return {path, status.st_rdev};
}

// A device as config.json has it: the node in /dev, and leave to open it.
json made(const Node& node) {
  return {{"path", node.path},
          {"type", "c"},
          {"major", ::gnu_dev_major(node.device)},
          {"minor", ::gnu_dev_minor(node.device)},
          {"fileMode", 0666},
          {"uid", 0},
          {"gid", 0}};
}

json allowed(const Node& node) {
  return {{"allow", true},
          {"type", "c"},
          {"major", ::gnu_dev_major(node.device)},
          {"minor", ::gnu_dev_minor(node.device)},
          {"access", "rw"}};
}

const fs::path kDefaultConfiguration = "/etc/criu/default.conf";

bool takes_default_configuration(const OciBundle& bundle) {
  return !bundle.criu_configuration.empty() && !takes_annotation(bundle.runtime);
}

// What the runtime itself thinks a container should be, asked once.
const json& specification(const std::string& runtime, const fs::path& directory) {
  static std::map<std::string, json> known;
  json& text = known[runtime];
  if (text.is_null()) {
    Launch spec;
    spec.arguments = {runtime, "spec"};
    spec.prepare = [&directory] {
      if (::chdir(directory.c_str()) != 0) ::_exit(126);
    };
    if (run(spec) != 0) throw std::runtime_error(runtime + " spec failed");
    text = json::parse(read_file(directory / kConfiguration));
  }
  return text;
}

}  // namespace

bool has_runtime(const std::string& runtime) {
  for (const char* folder : {"/usr/sbin", "/usr/bin"}) {
    if (fs::exists(fs::path(folder) / runtime)) return true;
  }
  return false;
}

bool takes_annotation(const std::string& runtime) {
  return runtime != "crun" || criu_version() >= CriuVersion{4, 2, 0};
}

bool takes_action_script() {
  return criu_version() >= CriuVersion{3, 19, 0};
}

bool hides_other_gpus_at_once(const std::string& runtime) {
  return runtime != "crun" || has_systemd();
}

OciContainer::OciContainer(OciBundle bundle, fs::path logs)
    : bundle_(std::move(bundle)),
      logs_(std::move(logs)),
      subject_(bundle_.directory / "control", kControlOfBundle) {
  fs::create_directories(logs_);
  make_root();
  write_configuration();
}

OciContainer::~OciContainer() {
  if (restoring_ > 0) (void)finish_restore();
  remove();
}

void OciContainer::make_root() const {
  const fs::path root = bundle_.directory / "rootfs";
  for (const char* name : {"dev", "proc", "sys", "tmp", "control"}) fs::create_directories(root / name);
  copy_below(root, files_of_program(settings().programs / "gpu-subject"));
}

void OciContainer::write_configuration() const {
  json configuration = specification(bundle_.runtime, bundle_.directory);

  json& process = configuration["process"];
  process["terminal"] = false;
  Strings arguments = {(settings().programs / "gpu-subject").string(), "--control", kControlOfBundle};
  arguments.insert(arguments.end(), bundle_.subject.begin(), bundle_.subject.end());
  process["args"] = arguments;
  configuration["mounts"].push_back({{"destination", kControlOfBundle},
                                     {"type", "bind"},
                                     {"source", subject_.directory().string()},
                                     {"options", {"bind", "rw"}}});

  std::vector<Node> nodes = {node_of("/dev/kfd")};
  for (const unsigned minor : bundle_.render_minors)
    nodes.push_back(node_of("/dev/dri/renderD" + std::to_string(minor)));
  json& container = configuration["linux"];
  container["cgroupsPath"] = has_systemd() ? "machine.slice:sluice:" + bundle_.id : "/" + bundle_.id;
  // The machine's network: criu would lock one of the container's own with iptables, which the guest does not
  // have.
  json namespaces = json::array();
  for (const json& each : container["namespaces"]) {
    if (each["type"] != "network") namespaces.push_back(each);
  }
  container["namespaces"] = namespaces;
  json devices = json::array(), rules = json::array({{{"allow", false}, {"access", "rwm"}}});
  for (const Node& node : nodes) {
    devices.push_back(made(node));
    rules.push_back(allowed(node));
  }
  container["devices"] = devices;
  container["resources"]["devices"] = rules;
  if (!bundle_.criu_configuration.empty() && !takes_default_configuration(bundle_))
    configuration["annotations"]["org.criu.config"] = bundle_.criu_configuration.string();
  write_file(bundle_.directory / kConfiguration, configuration.dump(1));
}

Launch OciContainer::command(const std::string& action, const Strings& more) {
  runtime_log_ = logs_ / (bundle_.id + "-" + std::to_string(++steps_) + "-" + action + ".runtime.log");
  Launch launch;
  // Its standard output would become the container's.
  launch.arguments = {bundle_.runtime, "--log", runtime_log_.string()};
  if (has_systemd()) launch.arguments.emplace_back("--systemd-cgroup");
  launch.arguments.push_back(action);
  launch.arguments.insert(launch.arguments.end(), more.begin(), more.end());
  return launch;
}

Strings OciContainer::work_path(const std::string& action) {
  const fs::path directory = bundle_.directory / (action + "-work");
  fs::remove_all(directory);
  fs::create_directories(directory);
  criu_log_ = directory / (action == "checkpoint" ? "dump.log" : "restore.log");
  return {"--work-path", directory.string()};
}

CriuRun OciContainer::ended(std::optional<int> status) const {
  // Where a scenario that failed looks for logs.
  if (fs::exists(criu_log_))
    fs::copy_file(criu_log_, fs::path(runtime_log_).replace_extension().replace_extension(".log"),
                  fs::copy_options::overwrite_existing);
  return {status, read_file(criu_log_) + read_file(runtime_log_)};
}

void OciContainer::adopt() {
  subject_.adopt(std::atoi(read_file(bundle_.directory / "pid").c_str()));
}

void OciContainer::remove() {
  subject_.kill();
  if (steps_ > 0) (void)vm_test::run(command("delete", {"--force", bundle_.id}));
}

std::string OciContainer::run() {
  const std::optional<int> status =
      vm_test::run(command("run", {"--detach", "--pid-file", (bundle_.directory / "pid").string(), "--bundle",
                                   bundle_.directory.string(), bundle_.id}));
  if (status != 0) return {};
  adopt();
  return subject_.hear();
}

CriuRun OciContainer::checkpoint(const fs::path& images, bool leave_running) {
  fs::create_directories(images);
  Strings options = work_path("checkpoint");
  if (leave_running) options.emplace_back("--leave-running");
  options.insert(options.end(), {"--image-path", images.string(), bundle_.id});
  CriuRun run = ended(vm_test::run(command("checkpoint", options)));
  if (run.good() && !leave_running) {
    (void)subject_.reap_dumped();
    subject_.forget();
  }
  return run;
}

pid_t OciContainer::start_restore(const fs::path& images) {
  Strings options = work_path("restore");
  options.insert(options.end(),
                 {"--image-path", images.string(), "--detach", "--pid-file",
                  (bundle_.directory / "pid").string(), "--bundle", bundle_.directory.string(), bundle_.id});
  if (takes_default_configuration(bundle_)) {
    fs::create_directories(kDefaultConfiguration.parent_path());
    fs::copy_file(bundle_.criu_configuration, kDefaultConfiguration, fs::copy_options::overwrite_existing);
  }
  restoring_ = start(command("restore", options));
  return restoring_;
}

CriuRun OciContainer::finish_restore() {
  const std::optional<int> status = wait_for(restoring_);
  if (!status) kill_and_reap(restoring_);
  restoring_ = 0;
  if (takes_default_configuration(bundle_)) fs::remove(kDefaultConfiguration);
  if (status == 0) adopt();
  return ended(status);
}

}  // namespace sluice::vm_test
