// How ranks of one job exchange tensors.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::engine {

/// A fixed group of ranks that call the same operations in the same order, with tensors of the same shape and type.
/// Calls block until the operation is done here; one thread at a time. Sums are deterministic: the same inputs on the
/// same number of ranks give the same bits. When a peer is lost or late by more than the group's time-out, the call
/// fails with kUnavailable, and so do all that follow: the only way on is a new group. Tensors are contiguous.
class Collective {
 public:
  /// An operation under way; its tensors must stay as they are until Wait returned. Destruction waits.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual Status Wait() = 0;
  };

  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// tensor = sum over ranks, in place.
  virtual std::unique_ptr<Pending> StartAllReduce(at::Tensor tensor) = 0;
  Status AllReduce(at::Tensor tensor) { return StartAllReduce(std::move(tensor))->Wait(); }
  /// Everyone gets every rank's tensor, in rank order.
  virtual Result<std::vector<at::Tensor>> AllGather(const at::Tensor& mine) = 0;
  /// Rank r gets the r-th of size() equal parts (along the first dimension) of the sum.
  virtual Result<at::Tensor> ReduceScatter(const at::Tensor& all) = 0;
  virtual Status Broadcast(at::Tensor tensor, int root) = 0;
  virtual Status Send(const at::Tensor& tensor, int to) = 0;
  virtual Status Receive(at::Tensor tensor, int from) = 0;
  virtual Status Barrier() = 0;

  /// The same ranks over separate connections, so that another thread may use them at the same time. Collective: every
  /// rank calls it, with the same name.
  virtual Result<std::unique_ptr<Collective>> Duplicate(std::string name) = 0;
};

/// Who and where this process is, as torchrun and our own launchers say it in the environment.
struct RankInfo {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. One rank when WORLD_SIZE is
  /// unset.
  static Result<RankInfo> FromEnvironment();
};

/// A group over Gloo on CPU: ranks meet at rank 0's TCP store. Blocks until all have come, or `timeout` passed.
Result<std::unique_ptr<Collective>> ConnectGloo(const RankInfo& info, Duration timeout);

/// A group of threads of this process: for tests, and for one rank. Element r is rank r's. A rank that waits longer
/// than `timeout` for the others fails; destroying one makes the others' calls fail.
std::vector<std::unique_ptr<Collective>> ConnectLocal(int size, Duration timeout = std::chrono::seconds(60));

}  // namespace millrace::engine
