// The checks of `millrace doctor`. Each check looks at one thing, changes nothing, and does not depend on other checks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/jobs/health/finding.h"

namespace millrace::cli {

using jobs::Finding;
using jobs::Findings;

/// Prints a finding with its limit on one line, and its advice on another line. With --json, prints one object, which
/// names the checked machine `node`, unless `node` is empty.
void PrintFinding(const Context& context, const Finding& finding, const std::string& node = "");

/// The features that the user asks for. A missing part of such a feature is a failure; otherwise it is a warning.
struct RequiredFeatures {
  std::vector<std::string> urls;
  bool mount = false, train = false, serve = false, gpu = false;
  bool node = false;  ///< checks only whether this machine is fit for ranks
  /// With `node`, in a rank of a job: also compares this machine with the machines of the other ranks.
  bool links = false;
};

// Checks of this machine (doctor_machine.cc). They take milliseconds.
Finding CheckPrograms(const RequiredFeatures& needs);
Finding CheckFuse(const RequiredFeatures& needs);
Finding CheckDisk();
Finding CheckMemory(std::uint64_t budget);
Finding CheckDescriptors();
Finding CheckCpu();
Finding CheckGpu(const RequiredFeatures& needs);

/// Checks the credentials, the endpoint, the clock and every URL (doctor_store.cc). Sends requests only if the user
/// gave an s3:// URL or an endpoint. Each request ends within some seconds.
Findings CheckStores(const Context& context, const RequiredFeatures& needs);

/// Returns the URL of the endpoint that serves these URLs: the endpoint that the user gave, or Amazon's if one URL is
/// an s3:// URL. Returns "" if no URL is in S3.
std::string StoreEndpointUrl(const Context& context, const std::vector<std::string>& urls);
/// Checks whether this machine is fit for ranks (doctor_node.cc). The network and the clock are checked against
/// StoreEndpointUrl(). Also measures how fast the objects below the URLs are read. Takes some seconds.
Findings CheckThisNode(const Context& context, const RequiredFeatures& needs);
/// The findings on the machines of a job.
struct ComparedNodes {
  int rank = 0;  ///< the rank of this process; rank 0 reports all machines
  /// By the machine's name; an entry "" is this machine, and then the only one.
  std::vector<std::pair<std::string, Findings>> findings;
};
/// Joins the other ranks, compares the findings with those of their machines, and measures the links between the
/// machines. Blocks until all ranks have joined, for two minutes at most.
ComparedNodes CompareWithRanks(const Context& context, Findings findings);

}  // namespace millrace::cli
