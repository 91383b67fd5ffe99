// The checks of `millrace doctor`. Each checks one thing, changes nothing, and does not depend on the others.
#pragma once

#include <string>
#include <vector>

#include "apps/millrace/cli/cli.h"

namespace millrace::cli {

/// One line of the report.
struct Finding {
  enum class Level { kOk, kWarn, kFail };
  Level level = Level::kOk;
  std::string check;   ///< "fuse", "credentials", …
  std::string what;    ///< what was found and what it means
  std::string advice;  ///< what to do; empty when nothing
};
using Findings = std::vector<Finding>;

/// Prints one line for the finding and one for the advice; with --json, one object.
void PrintFinding(const Context& context, const Finding& finding);

/// The features that the user wants. If something that they need is missing, that is a failure, otherwise a warning.
struct Needs {
  std::vector<std::string> urls;
  bool mount = false, train = false, serve = false, gpu = false;
};

// Checks of this machine (doctor_machine.cc). They take milliseconds.
Finding CheckPrograms(const Needs& needs);
Finding CheckFuse(const Needs& needs);
Finding CheckDisk();
Finding CheckMemory(std::uint64_t budget);
Finding CheckDescriptors();
Finding CheckCpu();
Finding CheckGpu(const Needs& needs);

/// Checks credentials, endpoint, clock and every URL (doctor_store.cc). Sends requests only if there is an s3:// URL or
/// an endpoint was given. Each request ends within some seconds.
Findings CheckStores(const Context& context, const Needs& needs);

}  // namespace millrace::cli
