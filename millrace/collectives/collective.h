// Collective operations: the ranks of one job exchange elements.
#pragma once

#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/collectives/elements.h"

namespace millrace::collectives {

/// The operation by which an all-reduce or a reduce-scatter combines elements.
enum class Reduction {
  kSum,
  kMax,
  kMean,    ///< the sum divided by the number of ranks; not of integers
  kAddSum,  ///< adds the sum to the result's old content; only for StartReduceScatter(), if `mine` is not a part of
            ///< `all`
};

/// A fixed group of ranks.
///
/// All ranks start the same operations in the same order, with as many elements of the same type; a send and its
/// receive count as one operation of two ranks. Operations work in place or into memory of the caller, and run in the
/// background from Start…() to Pending::Wait(). Operations of one group run in the order in which they were
/// started. One thread at a time.
///
/// Sums are deterministic: the same inputs on the same number of ranks give the same bits, and the same bits on all
/// ranks. Sums and means of bfloat16 add in float32 and round once. Over NCCL, bits depend on the machines, too, and
/// each addition rounds: nccl/nccl_group.h.
///
/// Errors, from Wait(): kUnavailable if a peer is lost, or late by more than the group's time-out; the message names
/// the peer where it is known. All later calls then fail, too; make a new group. kInvalidArgument if the elements do
/// not match the operation.
class Collective {
 public:
  /// An operation in progress. Its elements must not be changed, and those it writes must not be read, until Wait() has
  /// returned. The destructor waits.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual Status Wait() = 0;
  };
  using Operation = std::unique_ptr<Pending>;

  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Replaces `elements` by their combination over all ranks.
  virtual Operation StartAllReduce(Elements elements, Reduction reduction = Reduction::kSum) = 0;
  /// Fills `all` with the ranks' `mine`, in rank order. `all` has size() times the elements of `mine`. `mine` may be
  /// this rank's part of `all`; nothing is copied then.
  virtual Operation StartAllGather(Elements all, Elements mine) = 0;
  /// Fills `mine` with this rank's part of the ranks' combined `all`. `all` has size() times the elements of `mine`;
  /// part r belongs to rank r. `mine` may be this rank's part of `all`. The content of the rest of `all` is undefined
  /// afterwards.
  virtual Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction = Reduction::kSum) = 0;
  virtual Operation StartBroadcast(Elements elements, int root) = 0;
  /// Sends between one pair of ranks arrive in the order in which they were started. A send may be done before its
  /// receive has begun. A rank may have sends and receives in progress at once, in any order between different peers.
  virtual Operation StartSend(Elements elements, int to) = 0;
  virtual Operation StartReceive(Elements elements, int from) = 0;

  /// Gives up: makes all operations of this rank fail, those under way too, and notifies the other ranks that this rank
  /// failed with `cause`. So none of them waits for it. A group of one rank goes on.
  virtual void Abort(const Error& cause) = 0;

  Status AllReduce(Elements elements, Reduction reduction = Reduction::kSum) {
    return StartAllReduce(std::move(elements), reduction)->Wait();
  }
  Status AllGather(Elements all, Elements mine) { return StartAllGather(std::move(all), std::move(mine))->Wait(); }
  Status ReduceScatter(Elements mine, Elements all, Reduction reduction = Reduction::kSum) {
    return StartReduceScatter(std::move(mine), std::move(all), reduction)->Wait();
  }
  Status Broadcast(Elements elements, int root) { return StartBroadcast(std::move(elements), root)->Wait(); }
  Status Send(Elements elements, int to) { return StartSend(std::move(elements), to)->Wait(); }
  Status Receive(Elements elements, int from) { return StartReceive(std::move(elements), from)->Wait(); }
  Status Barrier() {
    std::uint8_t nothing = 0;
    return AllReduce(Elements::BytesOf(nothing), Reduction::kMax);
  }

  /// Returns a group of some of these ranks with connections of its own: another thread may use it at the same time.
  /// `members` are ranks of this group in the order of their ranks in the new one, this rank among them. Every member
  /// calls it with the same name and members; other ranks need not call it. `name` is unique among the groups made of
  /// this one with the same members.
  virtual Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) = 0;
  /// Returns a group of the same ranks: Split() with all members.
  Result<std::unique_ptr<Collective>> Duplicate(std::string name) {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    return Split(std::move(name), all);
  }
};

}  // namespace millrace::collectives
