// A rank ends with its supervisor. The parent-death signal sees to that where the supervisor started the rank itself.
// The lifeline, a pipe whose other end only the supervisor has, also reaches a rank that a wrapper script started.
#pragma once

#include <thread>

#include "millrace/base/files/files.h"

namespace millrace::cli {

/// While it lives, a thread waits for the pipe that $MILLRACE_LIFELINE names by its descriptor's number, and ends this
/// process at once, without cleaning up, when the supervisor has ended, however that ended. Does nothing without that
/// variable. Programs that this process starts do not get the descriptor.
class Lifeline {
 public:
  Lifeline();
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

 private:
  UniqueFd pipe_, wake_;
  std::thread thread_;
};

}  // namespace millrace::cli
