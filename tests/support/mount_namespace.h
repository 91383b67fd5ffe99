// A mount namespace beside the test's own, as containers have one.
#pragma once

#include <string>

#include "millrace/base/process/subprocess.h"

namespace millrace::testing_support {

/// A shell in a mount namespace with private copies of all mounts. Its destruction ends the namespace. One thread.
class MountNamespace {
 public:
  /// Errors: kUnsupported where this process may not make one.
  static Result<MountNamespace> Make();
  /// Runs a command of a shell, on one line. Returns its standard output and error.
  std::string Run(const std::string& command);
  pid_t shell() const { return shell_.pid(); }

 private:
  explicit MountNamespace(Subprocess shell) : shell_(std::move(shell)) {}

  Subprocess shell_;
};

}  // namespace millrace::testing_support
