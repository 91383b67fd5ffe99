// Upkeep of a mount's daemon: systemd's watchdog, log rotation and new credentials on SIGHUP.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/mount/daemon/service_manager.h"

namespace millrace::mount {

/// A thread of a daemon. On SIGHUP the thread reopens `log_file` (if any) as standard output and error, for log
/// rotation, and calls `reload`. Twice in each period of the service manager's watchdog, the thread calls `check`. If
/// that returns true, the thread notifies the service manager that the mount is alive.
///
/// REQUIRES: one per process, because it handles a signal. `manager` outlives it.
class Caretaker {
 public:
  Caretaker(const ServiceManager& manager, std::string log_file, std::function<bool()> check,
            std::function<Status()> reload, Logger log);
  ~Caretaker();
  Caretaker(const Caretaker&) = delete;
  Caretaker& operator=(const Caretaker&) = delete;

 private:
  void Run(const std::stop_token& stop);
  void ReopenLog() const;
  void Reload() const;

  // Constant after construction.
  const ServiceManager& manager_;
  const std::string log_file_;
  const std::function<bool()> check_;
  const std::function<Status()> reload_;
  const Logger log_;
  UniqueFd signalled_;  ///< an eventfd; the signal handler and the destructor write to it
  std::jthread thread_;
};

}  // namespace millrace::mount
