// Counts what a rank exchanges.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "millrace/collectives/collective.h"

namespace millrace::collectives {

/// The operations of a rank, by kind. Thread-safe.
class Traffic {
 public:
  enum Kind { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kSend, kReceive, kKinds };
  void Add(Kind kind, std::uint64_t bytes) {
    ++counts_[kind].operations;
    counts_[kind].bytes += bytes;
  }
  std::uint64_t operations(Kind kind) const { return counts_[kind].operations; }
  /// The bytes of the operations' elements; of all-gather and reduce-scatter, those of the whole.
  std::uint64_t bytes(Kind kind) const { return counts_[kind].bytes; }

 private:
  struct Count {
    std::atomic<std::uint64_t> operations = 0, bytes = 0;
  };
  std::array<Count, kKinds> counts_;
};

/// Wraps a rank of a group. It and the groups that are split from it add each operation that starts to `traffic`.
std::unique_ptr<Collective> MakeCounting(std::unique_ptr<Collective> inner, std::shared_ptr<Traffic> traffic);

/// The traffic of a rank in each of its groups, by the name that Split() was given; "" is the group of all.
using GroupTraffic = std::map<std::string, Traffic>;
/// Wraps a rank of a group. Each group that is split from it counts by itself. Borrows `traffic`; one thread at a time
/// splits groups.
std::unique_ptr<Collective> MakeCountingByGroup(std::unique_ptr<Collective> inner, GroupTraffic& traffic);

}  // namespace millrace::collectives
