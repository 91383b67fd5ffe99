// The files in which MPI programs name the machines of a job.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::jobs {

/// A machine of a hostfile.
struct HostSlots {
  std::string host;
  int slots = 0;  ///< the processes that it takes; 0: the file does not say
  bool operator==(const HostSlots&) const = default;
};

/// Parses a hostfile. Each line names a host, as OpenMPI ("n1 slots=4") or as MPICH and Intel MPI ("n1:4") write it.
/// The rest of a line after '#' is a comment. The slots of a host that is named more than once are added. `name` is the
/// file's, for messages.
/// Errors: kInvalidArgument with the line; also if the file names no host.
Result<std::vector<HostSlots>> ParseHostfile(std::string_view text, std::string_view name);

/// Returns why ssh cannot be given this host's name, or "" if it can: "n1", "user@10.0.0.1", "fe80::1".
std::string WhyNotAHost(std::string_view host);

}  // namespace millrace::jobs
