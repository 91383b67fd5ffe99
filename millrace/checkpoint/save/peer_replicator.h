// The interface through which a save copies its files to other machines. It hides the network.
#pragma once

#include <string>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/object/store.h"

namespace millrace::checkpoint {

/// Copies a rank's files to the disks of other machines. Implemented by checkpoint/local over HTTP. Thread-safe.
class PeerReplicator {
 public:
  virtual ~PeerReplicator() = default;
  /// Returns whether this rank is the first of its machine. That rank puts manifests on the machine's disk and collects
  /// there.
  virtual bool is_machine_leader() const = 0;
  /// Copies a file of the run's folder, such as "step-00000150/…", to the other machines that are to have it. Blocks.
  virtual Status CopyToPeers(const std::string& name, ByteSpan bytes, const object::Call& call) = 0;
};

}  // namespace millrace::checkpoint
