// NCCL and the streams of a GPU, on the CPU: for tests of what uses them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "millrace/base/threads/sync.h"
#include "millrace/collectives/nccl/nccl_api.h"
#include "millrace/collectives/nccl/side_stream.h"

namespace millrace::collectives {

/// Streams that are threads. Each does its work in order, late by a random number of yields. What the CPU computes is
/// done when a thread goes on, so a thread that holds its current stream waits.
class FakeStreams final : public StreamDevice {
 public:
  Status UseHere() override { return {}; }
  Result<std::unique_ptr<SideStream>> NewStream() override;
  Result<std::shared_ptr<const StreamPoint>> MarkCurrent() override;
};

/// NCCL among the threads of a process, on FakeStreams. Like NCCL, an operation begins when all ranks' streams have
/// come to it, and waits for ever for a rank that does not come. It checks nothing: ranks that give different
/// operations, or sizes, wait for ever, too. Thread-safe.
class FakeNccl final : public NcclApi {
 public:
  /// From now on, operations of the communicators' rank `rank` never begin: its device hangs.
  void Hang(int rank) { hanging_ = rank; }
  /// From now on, rank `rank` of a communicator cannot connect.
  void RefuseToConnect(int rank) { refused_ = rank; }
  /// From now on, all communicators report a lost network connection.
  void LoseConnections() { has_lost_ = true; }

  NcclResult GetUniqueId(NcclId* id) override;
  NcclResult InitRank(NcclHandle* made, int ranks, const NcclId& id, int rank) override;
  NcclResult AsyncState(NcclHandle of, NcclResult* state) override;
  NcclResult Finalize(NcclHandle) override { return NcclResult::kSuccess; }
  NcclResult Destroy(NcclHandle of) override;
  NcclResult Abort(NcclHandle of) override;

  NcclResult AllReduce(void* data, std::size_t count, NcclType type, NcclReduction reduction, NcclHandle with,
                       void* stream) override;
  NcclResult ReduceScatter(const void* all, void* mine, std::size_t count, NcclType type, NcclReduction reduction,
                           NcclHandle with, void* stream) override;
  NcclResult AllGather(const void* mine, void* all, std::size_t count, NcclType type, NcclHandle with,
                       void* stream) override;
  NcclResult Broadcast(void* data, std::size_t count, NcclType type, int root, NcclHandle with, void* stream) override;
  NcclResult Send(const void* data, std::size_t count, NcclType type, int to, NcclHandle with, void* stream) override;
  NcclResult Receive(void* data, std::size_t count, NcclType type, int from, NcclHandle with, void* stream) override;
  std::string Text(NcclResult) override { return "a failure of the tests"; }

 private:
  struct World;
  struct Rank;
  /// One rank's side of an operation.
  struct Part {
    std::array<std::int64_t, 4> what;  ///< the same on all ranks: kind, elements, type, detail
    const void* from;
    void* to;
  };

  /// Lets the stream wait for the other ranks. The last one computes for all: `compute` gets their parts.
  NcclResult Give(NcclHandle with, void* stream, Part part,
                  std::function<void(const std::map<int, Part>& parts)> compute);

  std::atomic<int> hanging_ = -1, refused_ = -1;
  std::atomic<bool> has_lost_ = false;
  Mutex mutex_;
  std::uint64_t ids_ MR_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::weak_ptr<World>> worlds_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::collectives
