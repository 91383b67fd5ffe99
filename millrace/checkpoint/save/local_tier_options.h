// A job's options for checkpoints on the machine's own disk.
#pragma once

#include <string>

namespace millrace::checkpoint {

/// A folder on the machine's own disk, or in its memory, for checkpoints that are made more often than the store's.
/// With one copy all ranks must see the same folder, and its checkpoints are lost with the machine. With N copies every
/// rank's file is on N machines, so the run survives the loss of N - 1 machines.
struct LocalTierOptions {
  std::string path;  ///< of the folder
  int keep = 2;      ///< how many of the newest checkpoints stay
  int copies = 1;    ///< machines that have a rank's file
  /// A name or address by which all machines reach the first one, such as MASTER_ADDR. Selects the network.
  std::string meeting_point = "127.0.0.1";
  bool operator==(const LocalTierOptions&) const = default;
};

}  // namespace millrace::checkpoint
