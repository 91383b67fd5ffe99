// The servers of the CSI driver: its sockets, its registration with kubelet, its health and its metrics.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/csi/mounter/mounter.h"
#include "millrace/csi/provision/provisioner.h"
#include "millrace/metrics/endpoint.h"
#include "millrace/metrics/metrics.h"

namespace millrace::csi {

inline constexpr char kDriverName[] = "csi.millrace.dev";

struct DriverOptions {
  std::string name = kDriverName;
  std::vector<std::string> aliases;    ///< other names that kubelet shall know the driver by
  std::filesystem::path socket;        ///< where the services listen
  std::string node_id;                 ///< the node's name; empty: no Node service
  Mounter* mounter = nullptr;          ///< with a Node service
  Provisioner* provisioner = nullptr;  ///< null: no Controller service
  /// Kubelet's folder of registration sockets, and the driver's socket as kubelet sees it. Empty: a
  /// node-driver-registrar registers the driver.
  std::filesystem::path registration_folder, socket_on_host;
  std::optional<metrics::EndpointOptions> http;  ///< /metrics and /health
  const metrics::Registry* mounts = nullptr;     ///< figures of a mounter in this process, for /metrics, too
  Logger log;
};

/// A running driver. Borrows the mounter and the provisioner. Thread-safe.
class Driver {
 public:
  /// Takes over the sockets of a driver before, which may still run. The sockets are for this user alone if the
  /// process's umask is 077. Errors: kAlreadyExists if a file that is no socket is in the way; those of listening.
  static Result<std::unique_ptr<Driver>> Start(const DriverOptions& options);
  ~Driver();
  /// Ends when calls in progress have ended, but after `grace` cancels them. Removes the sockets.
  void Stop(Duration grace);

 private:
  struct Rep;
  explicit Driver(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

/// Serves a mounter to a driver in another process.
class MounterServer {
 public:
  /// As Driver::Start. Borrows the mounter, and its figures `mounts`, which may be null.
  static Result<std::unique_ptr<MounterServer>> Start(Mounter& mounter, const std::filesystem::path& socket,
                                                      const std::optional<metrics::EndpointOptions>& http,
                                                      const metrics::Registry* mounts, Logger log);
  ~MounterServer();
  void Stop(Duration grace);

 private:
  struct Rep;
  explicit MounterServer(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

/// The mounter behind a socket that a MounterServer listens on. Its calls also fail with kUnavailable if none listens,
/// and with kDeadlineExceeded if the server does not answer in time.
std::unique_ptr<Mounter> ConnectMounter(const std::filesystem::path& socket, const MounterTimeouts& timeouts = {});

}  // namespace millrace::csi
