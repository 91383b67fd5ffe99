// What `millrace doctor` looks at. Each check looks at one thing, changes nothing and never throws the others off.
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

/// One line on standard output, and one with the advice; an object a line with --json.
void PrintFinding(const Context& context, const Finding& finding);

/// What the user wants to use: what it needs is then a failure when it is missing, otherwise a warning.
struct Needs {
  std::vector<std::string> urls;
  bool mount = false, train = false, serve = false, gpu = false;
};

// This machine (doctor_machine.cc). None takes longer than a moment.
Finding CheckPrograms(const Needs& needs);
Finding CheckFuse(const Needs& needs);
Finding CheckDisk();
Finding CheckMemory(std::uint64_t budget);
Finding CheckDescriptors();
Finding CheckCpu();
Finding CheckGpu(const Needs& needs);

/// Credentials, endpoint, clock and every URL (doctor_store.cc). Sends requests only when there is an s3:// URL or an
/// endpoint was given; each ends within some seconds.
Findings CheckStores(const Context& context, const Needs& needs);

}  // namespace millrace::cli
