// Collective operations: the ranks of one job exchange tensors.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::engine {

/// A fixed group of ranks. All ranks call the same operations in the same order, with contiguous tensors of the same
/// shape and type. Calls block until the operation is done on this rank. One thread at a time. Sums are deterministic:
/// the same inputs on the same number of ranks give the same bits.
/// Errors: kUnavailable if a peer is lost, or late by more than the group's time-out. All later calls then fail, too;
/// make a new group.
class Collective {
 public:
  /// An operation in progress. Its tensors must not be changed until Wait() has returned. The destructor waits.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual Status Wait() = 0;
  };

  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Replaces `tensor` by its sum over all ranks.
  virtual std::unique_ptr<Pending> StartAllReduce(at::Tensor tensor) = 0;
  Status AllReduce(at::Tensor tensor) { return StartAllReduce(std::move(tensor))->Wait(); }
  /// Returns the tensors of all ranks, in rank order, on every rank.
  virtual Result<std::vector<at::Tensor>> AllGather(const at::Tensor& mine) = 0;
  /// Returns the r-th of size() equal parts (along the first dimension) of the sum on rank r.
  virtual Result<at::Tensor> ReduceScatter(const at::Tensor& all) = 0;
  virtual Status Broadcast(at::Tensor tensor, int root) = 0;
  virtual Status Send(const at::Tensor& tensor, int to) = 0;
  virtual Status Receive(at::Tensor tensor, int from) = 0;
  virtual Status Barrier() = 0;

  /// Returns a group of the same ranks with connections of its own, so that another thread may use it at the same time.
  /// A collective operation: every rank calls it, with the same name.
  virtual Result<std::unique_ptr<Collective>> Duplicate(std::string name) = 0;
};

/// This process's rank and the master's address. torchrun and Millrace's launchers put them into the environment.
struct RankInfo {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without WORLD_SIZE the job has
  /// one rank.
  static Result<RankInfo> FromEnvironment();
};

/// Returns a group over Gloo on CPUs. The ranks meet at rank 0's TCP store. Blocks until all are there or `timeout` has
/// passed.
Result<std::unique_ptr<Collective>> ConnectGloo(const RankInfo& info, Duration timeout);

/// Returns a group of threads of this process, for tests and for jobs of one rank. Element r belongs to rank r. A call
/// fails if it waits for the others longer than `timeout`, or if one of them was destroyed.
std::vector<std::unique_ptr<Collective>> ConnectLocal(int size, Duration timeout = std::chrono::seconds(60));

}  // namespace millrace::engine
