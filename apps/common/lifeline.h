// Ends a rank when its supervisor ends. The parent-death signal does so if the supervisor started the rank itself. The
// lifeline also works if a wrapper script started the rank: it is a pipe whose other end only the supervisor has.
#pragma once

#include <thread>

#include "millrace/base/files/files.h"

namespace millrace::cli {

/// Ends this process with its supervisor. A thread waits on the pipe; $MILLRACE_LIFELINE has the number of its
/// descriptor. When the supervisor has ended, in whatever way, the thread ends this process at once, without cleaning
/// up. Does nothing if the variable is not set. Programs that this process starts do not get the descriptor.
class SupervisorWatch {
 public:
  SupervisorWatch();
  ~SupervisorWatch();
  SupervisorWatch(const SupervisorWatch&) = delete;
  SupervisorWatch& operator=(const SupervisorWatch&) = delete;

 private:
  UniqueFd pipe_, wake_;
  std::thread thread_;
};

}  // namespace millrace::cli
