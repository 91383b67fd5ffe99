// The checks of `millrace doctor`. Each checks one thing, changes nothing, and does not depend on the others.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/health/finding.h"

namespace millrace::cli {

using jobs::Finding;
using jobs::Findings;

/// Prints one line for the finding, with its limit, and one for the advice; with --json, one object. `node`: the
/// machine that it is of, if others are told of too.
void PrintFinding(const Context& context, const Finding& finding, const std::string& node = "");

/// The features that the user wants. If something that they need is missing, that is a failure, otherwise a warning.
struct Needs {
  std::vector<std::string> urls;
  bool mount = false, train = false, serve = false, gpu = false;
  bool node = false;   ///< only whether this machine is fit for ranks
  bool links = false;  ///< with `node`: this is a rank; compares its machine with those of the others
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

/// Returns the URL at which the store of these URLs answers: the endpoint that was given, or Amazon's if one of them is
/// an s3:// URL. "" if they are elsewhere.
std::string StoreEndpointUrl(const Context& context, const std::vector<std::string>& urls);
/// Checks whether this machine is fit for ranks (doctor_node.cc). The store is that of the URLs, or the endpoint that
/// was given. Measures how fast the objects below the URLs are read. Takes some seconds.
Findings CheckThisNode(const Context& context, const Needs& needs);
/// What was found on the machines of a job.
struct ComparedNodes {
  int rank = 0;                                            ///< of this process; the first one tells of all machines
  std::vector<std::pair<std::string, Findings>> findings;  ///< by the machine's name; "": this one, and no others
};
/// Joins the other ranks, compares the findings with those of their machines, and measures the links between them.
/// Blocks until all ranks are there, for two minutes at most.
ComparedNodes CompareWithRanks(const Context& context, Findings findings);

}  // namespace millrace::cli
