// The keeper of a node as the mounter sees it. An interface, so that tests can stop, kill and restart a keeper without
// processes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/mount/daemon/session_lease.h"

namespace millrace::csi {

/// The calls of session_lease.h for one keeper. Thread-safe. Every call ends: kUnavailable if there is no keeper,
/// kDeadlineExceeded if it does not answer in time, kResourceExhausted if it is full.
class KeeperClient {
 public:
  virtual ~KeeperClient() = default;
  virtual Result<std::vector<mount::HeldSessionInfo>> List() = 0;
  virtual Status StorePlan(const std::string& name, const std::string& plan) = 0;
  /// Errors: kNotFound if the keeper says that it has no plan of that name.
  virtual Result<std::string> ReadPlan(const std::string& name) = 0;
  /// Errors: kBusy if a process holds the name.
  virtual Status Forget(const std::string& name) = 0;
};

/// The keeper that listens on a socket. Null for an empty path: there is none.
std::unique_ptr<KeeperClient> MakeKeeperClient(const std::filesystem::path& socket);

}  // namespace millrace::csi
