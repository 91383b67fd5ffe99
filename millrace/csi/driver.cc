#include "millrace/csi/driver.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <optional>

#include "millrace/base/hash/random.h"
#include "millrace/csi/service/services.h"

namespace millrace::csi {
namespace {

/// Linux's limit for the path of a socket, with its NUL.
constexpr std::size_t kMaxSocketPath = 108;

/// Services on one socket. gRPC removes the path that it listened on when it stops, even if another process listens
/// there by then: the driver's next pod. So it listens on a path of its own, which is renamed, and the name is removed
/// only if it still is this socket.
struct Listener {
  std::filesystem::path socket;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
  dev_t device = 0;
  ino_t inode = 0;
};

/// Returns the socket at `path`, or nothing. Errors: kAlreadyExists if it is another kind of file.
Result<std::optional<struct stat>> FindSocket(const std::filesystem::path& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return std::nullopt;
    return Fail(ErrnoError(errno, path.string()));
  }
  if (!S_ISSOCK(info.st_mode)) return Fail(Code::kAlreadyExists, "{} is no socket; it is not replaced", path.string());
  return info;
}

Status Listen(Listener& listener) {
  MR_TRY(FindSocket(listener.socket));
  // Kubelet overlooks names that begin with a dot.
  const std::filesystem::path own =
      listener.socket.parent_path() / fmt::format(".{:08x}", SystemEntropy() & 0xffffffffU);
  if (std::max(own.string().size(), listener.socket.string().size()) >= kMaxSocketPath) {
    return Fail(Code::kInvalidArgument, "the path {} is too long for a socket", listener.socket.string());
  }
  constexpr int kMaxThreads = 64;  // calls wait for mounts and for stores
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMaxThreads);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.AddListeningPort("unix:" + own.string(), grpc::InsecureServerCredentials());
  for (const auto& service : listener.services) builder.RegisterService(service.get());
  listener.server = builder.BuildAndStart();
  if (!listener.server) return Fail(Code::kIo, "cannot listen on {}; does its folder exist?", listener.socket.string());
  const auto bound = MR_TRY(FindSocket(own));
  if (!bound || ::rename(own.c_str(), listener.socket.c_str()) != 0) {
    return Fail(ErrnoError(errno, "cannot make " + listener.socket.string()));
  }
  listener.device = bound->st_dev;
  listener.inode = bound->st_ino;
  return {};
}

void StopListener(Listener& listener, Duration grace) {
  if (!listener.server) return;
  // First, so that kubelet asks no more.
  const auto now = FindSocket(listener.socket);
  if (now && *now && (*now)->st_dev == listener.device && (*now)->st_ino == listener.inode) {
    ::unlink(listener.socket.c_str());
  }
  listener.server->Shutdown(std::chrono::system_clock::now() +
                            std::chrono::duration_cast<std::chrono::system_clock::duration>(grace));
  listener.server->Wait();
  listener.server.reset();
}

/// The figures of calls, and those of mounts, if any.
std::string PrometheusText(const metrics::Registry& calls, const metrics::Registry* mounts) {
  return calls.PrometheusText() + (mounts != nullptr ? mounts->PrometheusText() : "");
}

constexpr Duration kStopGrace = std::chrono::seconds(5);

}  // namespace

struct Driver::Rep {
  explicit Rep(const Logger& log) : calls(log, registry) {}
  metrics::Registry registry;
  CallLog calls;
  std::deque<Listener> listeners;  // the last one is stopped first
  std::unique_ptr<http::Server> http;
};

Driver::Driver(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Driver::~Driver() { Stop(kStopGrace); }

Result<std::unique_ptr<Driver>> Driver::Start(const DriverOptions& options) {
  auto rep = std::make_unique<Rep>(options.log);
  auto ready = [mounter = options.mounter]() -> Status {
    if (mounter == nullptr) return {};
    // A path that no volume has: whatever the mounter says of it, it answers.
    auto answer = mounter->Inspect("/");
    if (!answer && answer.error().code() == Code::kUnavailable) return Fail(answer.error());
    return {};
  };
  Listener& main = rep->listeners.emplace_back(options.socket);
  main.services.push_back(NewIdentityService(options.name, options.provisioner != nullptr, ready, rep->calls));
  if (options.provisioner != nullptr) {
    main.services.push_back(NewControllerService(*options.provisioner, rep->calls));
  }
  if (!options.node_id.empty()) {
    main.services.push_back(NewNodeService(options.node_id, *options.mounter, rep->calls));
  }
  MR_TRY(Listen(main));
  if (options.http) {
    metrics::EndpointOptions http = *options.http;
    http.health = ready;
    rep->http = MR_TRY(metrics::ServeMetrics(http, {{"/metrics", [registry = &rep->registry, mounts = options.mounts] {
                                                       return PrometheusText(*registry, mounts);
                                                     }}}));
  }
  if (!options.registration_folder.empty()) {
    // Kubelet asks as soon as it sees the socket, so the services are there before.
    std::vector<std::string> names = options.aliases;
    names.insert(names.begin(), options.name);
    for (const std::string& name : names) {
      Listener& listener = rep->listeners.emplace_back(options.registration_folder / (name + "-reg.sock"));
      listener.services.push_back(NewRegistrationService(name, options.socket_on_host, options.log));
      MR_TRY(Listen(listener));
    }
  }
  return std::unique_ptr<Driver>(new Driver(std::move(rep)));
}

void Driver::Stop(Duration grace) {
  while (!rep_->listeners.empty()) {
    StopListener(rep_->listeners.back(), grace);
    rep_->listeners.pop_back();
  }
}

struct MounterServer::Rep {
  explicit Rep(const Logger& log) : calls(log, registry) {}
  metrics::Registry registry;
  CallLog calls;
  Listener listener;
  std::unique_ptr<http::Server> http;
};

MounterServer::MounterServer(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
MounterServer::~MounterServer() { Stop(kStopGrace); }

Result<std::unique_ptr<MounterServer>> MounterServer::Start(Mounter& mounter, const std::filesystem::path& socket,
                                                            const std::optional<metrics::EndpointOptions>& http,
                                                            const metrics::Registry* mounts, Logger log) {
  auto rep = std::make_unique<Rep>(log);
  rep->listener.socket = socket;
  rep->listener.services.push_back(NewMounterService(mounter, rep->calls));
  MR_TRY(Listen(rep->listener));
  if (http) {
    rep->http = MR_TRY(metrics::ServeMetrics(
        *http, {{"/metrics", [registry = &rep->registry, mounts] { return PrometheusText(*registry, mounts); }}}));
  }
  return std::unique_ptr<MounterServer>(new MounterServer(std::move(rep)));
}

void MounterServer::Stop(Duration grace) { StopListener(rep_->listener, grace); }

std::unique_ptr<Mounter> ConnectMounter(const std::filesystem::path& socket, const MounterTimeouts& timeouts) {
  return NewRemoteMounter(socket, timeouts);
}

}  // namespace millrace::csi
