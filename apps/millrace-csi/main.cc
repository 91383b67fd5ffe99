// `millrace-csi`: the CSI driver of a node or of a cluster, and the mounter of a node, until they are told to stop.
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <optional>

#include "apps/common/globals.h"
#include "apps/common/output.h"
#include "apps/common/parse.h"
#include "millrace/base/process/descriptor_limit.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/csi/driver.h"
#include "millrace/csi/mounter/local_mounter.h"
#include "millrace/csi/provision/connections.h"
#include "millrace/csi/volume/s3_policy.h"
#include "millrace/mount/daemon/session_holder.h"

namespace millrace::cli {
namespace {

struct Arguments {
  Globals globals;
  std::string name = csi::kDriverName, socket, node_id, mounter_socket, place, registration, socket_on_host,
              kubelet_folder = "/var/lib/kubelet", state_folder, http_listen, keeper;
  std::vector<std::string> aliases;
  http::AccessOptions http_access;
  std::uint64_t mount_memory = 512 * kMiB, node_memory = 0, cache_bytes = 20 * kGiB;
  std::string publish_timeout = "60s";
  std::string grace = "30s";
};

/// The folder of everything that the driver keeps on a node, below kubelet's.
std::string DriverFolder(const Arguments& a) { return a.kubelet_folder + "/plugins/" + a.name; }

void AddCommonFlags(CLI::App& command, Arguments& a) {
  command.add_option("--name", a.name, "The driver's name in the cluster")->capture_default_str();
  command.add_option("--kubelet-folder", a.kubelet_folder, "Kubelet's folder (its --root-dir)")->capture_default_str();
  command.add_option("--http-listen", a.http_listen, "Serve /health and /metrics here: 127.0.0.1:9809");
  command.add_option("--metrics-key-file", a.http_access.key_file,
                     "File of keys; serve /metrics to clients that send one as a bearer token");
  command.add_flag("--metrics-insecure", a.http_access.insecure, "Serve /metrics beyond loopback without keys");
  command.add_option("--grace", a.grace, "Time for calls to end after SIGTERM")->capture_default_str();
}

void AddBytes(CLI::App& command, const std::string& name, std::uint64_t& into, const std::string& help) {
  command.add_option_function<std::string>(
      name,
      [&into](const std::string& text) {
        auto parsed = ParseBytes(text);
        if (!parsed) throw CLI::ValidationError(parsed.error().ToString());
        into = *parsed;
      },
      help);
}

void AddMounterFlags(CLI::App& command, Arguments& a) {
  command.add_option("--state-folder", a.state_folder,
                     "Records and logs of mounts, staged writes, cached blocks (default: below kubelet's folder)");
  AddBytes(command, "--mount-memory", a.mount_memory, "Memory of each mount (default: 512MiB)");
  AddBytes(
      command, "--node-memory", a.node_memory,
      "Memory of all mounts of the node together; a volume for which too little is left waits (default: no limit)");
  command.add_option("--keeper", a.keeper,
                     "The socket of this node's keeper: mounts then go on after the death of their processes");
  AddBytes(command, "--cache-size", a.cache_bytes, "Disk cache that the volumes of the node share (default: 20GiB)");
}

std::optional<metrics::EndpointOptions> HttpOptions(const Arguments& a, const Logger& log) {
  if (a.http_listen.empty()) return std::nullopt;
  return metrics::EndpointOptions{.listen = a.http_listen,
                                  .access = a.http_access,
                                  .how = "--metrics-key-file FILE, or --metrics-insecure",
                                  .health = nullptr,
                                  .log = log};
}

Result<std::unique_ptr<csi::LocalMounter>> OpenMounter(const Arguments& a, metrics::Registry& figures,
                                                       const Logger& log) {
  const std::filesystem::path programs = MR_TRY(ProgramDirectory());
  return csi::LocalMounter::Open({.program = (programs / "millrace").string(),
                                  .kubelet_folder = a.kubelet_folder,
                                  .state_folder = a.state_folder.empty() ? DriverFolder(a) + "/state" : a.state_folder,
                                  .mount_memory = a.mount_memory,
                                  .node_memory = a.node_memory,
                                  .cache_bytes = a.cache_bytes,
                                  .keeper = a.keeper,
                                  .metrics = &figures,
                                  .log = log});
}

Result<std::string> NodeId(const Arguments& a) {
  if (!a.node_id.empty()) return a.node_id;
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return Fail(ErrnoError(errno, "cannot read the host's name"));
  return std::string(name.data());
}

/// Makes the folder of a socket, for this user alone.
Status MakeSocketFolder(const std::filesystem::path& socket) {
  std::error_code error;
  std::filesystem::create_directories(socket.parent_path(), error);
  if (error) return Fail(ErrnoError(error.value(), "cannot make " + socket.parent_path().string()));
  return {};
}

/// Waits for a signal, then stops the server.
template <class Server>
Status AwaitStop(Server& server, const Arguments& a, const std::stop_token& stop) {
  const Duration grace = MR_TRY(ParseDuration(a.grace));
  SystemClock().SleepUntil(TimePoint::max(), stop);
  server.Stop(grace);
  return {};
}

Status RunMounter(const Arguments& a, const std::stop_token& stop) {
  const Logger log = Logger::Stderr(a.globals.log_level);
  const std::filesystem::path socket = a.socket.empty() ? DriverFolder(a) + "/mounter.sock" : a.socket;
  MR_TRY(MakeSocketFolder(socket));
  metrics::Registry figures;
  const auto mounter = MR_TRY(OpenMounter(a, figures, log));
  const auto server = MR_TRY(csi::MounterServer::Start(*mounter, socket, HttpOptions(a, log), &figures, log));
  log.Info("the mounter serves", {{"socket", socket.string()}});
  const Duration publish_timeout = MR_TRY(ParseDuration(a.publish_timeout));
  MR_TRY(AwaitStop(*server, a, stop));
  // If the node shuts down, nobody publishes what is on its disk until it is back.
  if (const int files = mounter->AwaitPublished(publish_timeout); files > 0) {
    log.Warning("closed files are not in their bucket yet; the next mount of their volume publishes them",
                {{"files", files}});
  }
  return {};
}

Status RunKeeper(const Arguments& a, const std::stop_token& stop) {
  const Logger log = Logger::Stderr(a.globals.log_level);
  const std::filesystem::path socket = a.socket.empty() ? DriverFolder(a) + "/keeper/keeper.sock" : a.socket;
  MR_TRY(MakeSocketFolder(socket));
  const auto keeper = MR_TRY(mount::SessionHolder::Start(socket, log));
  log.Info("the keeper serves", {{"socket", socket.string()}});
  SystemClock().SleepUntil(TimePoint::max(), stop);
  return {};
}

Status RunDriver(const Arguments& a, bool node, bool controller, const std::stop_token& stop) {
  const Logger log = Logger::Stderr(a.globals.log_level);
  csi::DriverOptions options{.name = a.name, .aliases = a.aliases, .http = HttpOptions(a, log), .log = log};
  options.socket = a.socket.empty() ? DriverFolder(a) + "/csi.sock" : a.socket;
  MR_TRY(MakeSocketFolder(options.socket));
  metrics::Registry figures;
  std::unique_ptr<csi::Mounter> mounter;
  if (node) {
    options.node_id = MR_TRY(NodeId(a));
    if (a.mounter_socket.empty()) {
      mounter = MR_TRY(OpenMounter(a, figures, log));
      options.mounts = &figures;
    } else {
      mounter = csi::ConnectMounter(a.mounter_socket);
    }
    options.mounter = mounter.get();
    options.registration_folder = a.registration;
    options.socket_on_host = a.socket_on_host.empty() ? options.socket : std::filesystem::path(a.socket_on_host);
  }
  object::ConnectOptions connect = a.globals.connect;
  connect.log = log;
  csi::Connections connections(std::move(connect));
  std::unique_ptr<csi::Provisioner> provisioner;
  if (controller) {
    provisioner = MR_TRY(csi::Provisioner::Create(
        {.driver = a.name,
         .default_place = a.place,
         .connect = [&connections](const csi::Secrets& secrets) { return connections.Get(secrets); },
         .log = log}));
    options.provisioner = provisioner.get();
  }
  const auto driver = MR_TRY(csi::Driver::Start(options));
  log.Info("the driver serves", {{"driver", a.name}, {"socket", options.socket.string()}, {"node", options.node_id}});
  return AwaitStop(*driver, a, stop);
}

struct PolicyArguments {
  csi::PolicyRequest request;
  bool read_only = false, provisioner = false, own_buckets = false;
};

Status PrintPolicy(PolicyArguments a) {
  if (a.read_only) a.request.use = csi::PolicyUse::kReadOnlyVolume;
  if (a.provisioner) a.request.use = csi::PolicyUse::kProvisioner;
  if (a.own_buckets) a.request.use = csi::PolicyUse::kOwnBuckets;
  Print("{}\n", MR_TRY(csi::MakeS3Policy(a.request)).dump(2));
  return FinishOutput() ? Status() : Fail(Code::kIo, "cannot write the policy");
}

int Main(int argc, char** argv) {
  RaiseDescriptorLimit();  // a keeper has three descriptors for each mount, a mounter some for each call
  ::umask(077);            // sockets, records and logs are root's alone
  SignalStop signals;
  Arguments a;
  a.globals.log_level = LogLevel::kInfo;
  CLI::App app("Volumes of Kubernetes in buckets: a driver of the Container Storage Interface.", "millrace csi");
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  AddGlobalFlags(app, a.globals);
  std::function<Status()> run;

  CLI::App* node = app.add_subcommand("node", "Serve kubelet on a node: stage, publish, figures");
  node->footer("Examples:\n  millrace csi node --http-listen 127.0.0.1:9809");
  AddCommonFlags(*node, a);
  node->add_option("--socket", a.socket, "Where it listens (default: csi.sock in kubelet's folder)");
  node->add_option("--node-id", a.node_id, "The node's name (default: the host's)")->envname("NODE_NAME");
  node->add_option("--mounter", a.mounter_socket,
                   "The socket of this node's mounter (default: mount in this process's namespace)");
  node->add_option("--alias", a.aliases, "Register under this name, too: s3.csi.aws.com");
  node->add_option("--registration-folder", a.registration,
                   "Kubelet's folder of registration sockets (default: none, a node-driver-registrar does it)");
  node->add_option("--socket-on-host", a.socket_on_host, "The path of --socket for kubelet, if it differs");
  AddMounterFlags(*node, a);
  node->callback([&] { run = [&] { return RunDriver(a, /*node=*/true, /*controller=*/false, signals.token()); }; });

  CLI::App* controller = app.add_subcommand("controller", "Make and remove volumes and snapshots, for csi-provisioner");
  controller->footer("Examples:\n  millrace csi controller --place s3://volumes/cluster");
  AddCommonFlags(*controller, a);
  controller->add_option("--socket", a.socket, "Where it listens");
  controller->add_option("--place", a.place, "s3://BUCKET/PREFIX for StorageClasses that name no bucket, and listings");
  controller->callback(
      [&] { run = [&] { return RunDriver(a, /*node=*/false, /*controller=*/true, signals.token()); }; });

  CLI::App* both = app.add_subcommand("all", "The services of node and controller on one socket, for tests");
  both->footer("Examples:\n  millrace csi all --socket /tmp/csi.sock");
  AddCommonFlags(*both, a);
  AddMounterFlags(*both, a);
  both->add_option("--socket", a.socket, "Where it listens");
  both->add_option("--node-id", a.node_id, "The node's name (default: the host's)")->envname("NODE_NAME");
  both->add_option("--mounter", a.mounter_socket, "The socket of this node's mounter");
  both->add_option("--place", a.place, "s3://BUCKET/PREFIX for StorageClasses that name no bucket, and listings");
  both->callback([&] { run = [&] { return RunDriver(a, /*node=*/true, /*controller=*/true, signals.token()); }; });

  CLI::App* mounter = app.add_subcommand("mounter", "Own the mounts of a node, so that drivers can be replaced");
  mounter->footer("Examples:\n  millrace csi mounter --publish-timeout 5m");
  AddCommonFlags(*mounter, a);
  AddMounterFlags(*mounter, a);
  mounter->add_option("--publish-timeout", a.publish_timeout, "Time to publish closed files after SIGTERM")
      ->capture_default_str();
  mounter->add_option("--socket", a.socket, "Where it listens (default: mounter.sock in kubelet's folder)");
  mounter->callback([&] { run = [&] { return RunMounter(a, signals.token()); }; });

  CLI::App* keeper = app.add_subcommand("keeper", "Hold the mounts of a node while their processes are started again");
  keeper->footer("Examples:\n  millrace csi keeper --kubelet-folder /var/lib/kubelet");
  keeper->add_option("--name", a.name, "The driver's name in the cluster")->capture_default_str();
  keeper->add_option("--kubelet-folder", a.kubelet_folder, "Kubelet's folder (its --root-dir)")->capture_default_str();
  keeper->add_option("--socket", a.socket, "Where it listens (default: keeper/keeper.sock in the driver's folder)");
  keeper->callback([&] { run = [&] { return RunKeeper(a, signals.token()); }; });

  PolicyArguments p;
  CLI::App* policy =
      app.add_subcommand("policy", "Print the policy of IAM with exactly the rights that a volume needs");
  policy->footer("Examples:\n  millrace csi policy --bucket volumes");
  policy
      ->add_option("--bucket", p.request.bucket,
                   "Bucket, or ARN of an access point; with --bucket-per-volume: how the names of buckets begin")
      ->required();
  policy->add_option("--prefix", p.request.prefix, "Only the keys below it: team-a/");
  CLI::Option* read_only = policy->add_flag("--read-only", p.read_only, "Of a volume that pods only read");
  CLI::Option* provisioner =
      policy->add_flag("--provisioner", p.provisioner, "Of who makes and deletes volumes, as prefixes");
  policy->add_flag("--bucket-per-volume", p.own_buckets, "The same, as buckets")
      ->excludes(read_only)
      ->excludes(provisioner);
  read_only->excludes(provisioner);
  policy->callback([&] { run = [&] { return PrintPolicy(p); }; });

  if (const auto status = ParseOrExit(app, argc, argv)) return *status;
  // For the mounts, which are processes of their own.
  for (const auto& [name, value] : GlobalsEnvironment(a.globals)) ::setenv(name.c_str(), value.c_str(), 1);
  const Status served = run();
  if (served) return 0;
  PrintError("millrace csi: {}\n", served.error().ToString());
  return ToExitStatus(served.error().code());
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) { return millrace::cli::Main(argc, argv); }
