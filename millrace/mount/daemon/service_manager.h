// Notifications to systemd: ready, stopping, alive.
#pragma once

#include <string>

#include "millrace/base/clock.h"

namespace millrace::mount {

/// Speaks systemd's notification protocol, sd_notify(3), where NOTIFY_SOCKET is set; does nothing elsewhere. Reads the
/// environment at construction. Thread-safe.
class ServiceManager {
 public:
  ServiceManager();
  void Ready(const std::string& status) const { Send("READY=1\nSTATUS=" + status); }
  void Stopping() const { Send("STOPPING=1"); }
  void Alive() const { Send("WATCHDOG=1"); }
  /// Returns how often to call Alive: twice in the period of the watchdog. Zero: never.
  Duration watchdog_period() const { return watchdog_period_; }

 private:
  void Send(const std::string& state) const;

  // Constant after construction.
  std::string address_;
  Duration watchdog_period_{};
};

}  // namespace millrace::mount
