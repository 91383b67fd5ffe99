// The transport of a group's operations: shared memory or TCP.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/collectives/collective.h"

namespace millrace::collectives {

/// The ranks of a group.
struct GroupMembers {
  int rank = 0;             ///< this one, in the group
  std::vector<int> in_job;  ///< of each, its rank in the job: errors name that

  int size() const { return static_cast<int>(in_job.size()); }
  /// Returns a group of some of these, of which this rank is one.
  GroupMembers Part(std::span<const int> members) const;
  /// Returns the members of a whole job.
  static GroupMembers Job(int rank, int ranks);
};

/// The operations of Collective, without a background: each call blocks until the operation is done on this rank.
/// MakeCollective() makes a Collective of it, which also checks the arguments: elements are in the memory of the host,
/// and of sizes that match the operation on this rank.
///
/// One thread at a time calls AllReduce, AllGather, ReduceScatter and Broadcast. At the same time, one thread for each
/// peer may call Send, and one thread for each peer Receive. Any thread may call Abort.
///
/// Errors: those of Collective. After an error the transport fails every call.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Status AllReduce(const Elements& elements, Reduction reduction) = 0;
  virtual Status AllGather(const Elements& all, const Elements& mine) = 0;
  virtual Status ReduceScatter(const Elements& mine, const Elements& all, Reduction reduction) = 0;
  virtual Status Broadcast(const Elements& elements, int root) = 0;
  virtual Status Send(const Elements& elements, int to) = 0;
  virtual Status Receive(const Elements& elements, int from) = 0;

  /// Makes all calls of this rank fail, those under way too, and notifies the peers that this rank failed with `cause`.
  virtual void Abort(const Error& cause) = 0;

  /// As Collective::Split. `members` are distinct ranks of this group, this rank among them.
  virtual Result<std::unique_ptr<Collective>> Split(const std::string& name, std::span<const int> members) = 0;
};

}  // namespace millrace::collectives
