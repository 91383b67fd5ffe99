// What a mount's daemon owes those who run it: systemd's notifications and watchdog, log files that can be rotated.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// Speaks systemd's notification protocol (sd_notify(3)) where NOTIFY_SOCKET is set; does nothing elsewhere.
class ServiceManager {
 public:
  ServiceManager();
  void Ready(const std::string& status) const { Send("READY=1\nSTATUS=" + status); }
  void Stopping() const { Send("STOPPING=1"); }
  void Alive() const { Send("WATCHDOG=1"); }
  /// How often Alive is wanted; zero: never.
  Duration watchdog_period() const { return watchdog_period_; }

 private:
  void Send(const std::string& state) const;
  std::string address_;
  Duration watchdog_period_{};
};

/// While it lives, SIGHUP opens `log_file` (if any) anew as standard output and error and runs `reload`, and the
/// service manager is told that the mount is alive as often as it wants, as long as `check` says so. One per process.
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

  const ServiceManager& manager_;
  const std::string log_file_;
  const std::function<bool()> check_;
  const std::function<Status()> reload_;
  const Logger log_;
  UniqueFd signalled_;  ///< an eventfd that the signal handler and the destructor write to
  std::jthread thread_;
};

}  // namespace millrace::mount
