// The provenance of a checkpoint: the machine, user and program that made it.
#pragma once

#include <map>
#include <string>

namespace millrace::checkpoint {

/// The machine, user and program that made a checkpoint. Any member may be empty.
struct Provenance {
  std::string host;                              ///< the machine's name
  std::string user;                              ///< who ran the program
  std::string program;                           ///< "millrace-train"
  std::string version;                           ///< "1.0.0"
  std::map<std::string, std::string> libraries;  ///< name to version: {"torch": "2.11.0"}
  bool operator==(const Provenance&) const = default;
};

/// Returns the provenance of this process: host and user of this machine, and the given program and version.
Provenance LocalProvenance(std::string program, std::string version);

}  // namespace millrace::checkpoint
