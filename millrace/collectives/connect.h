// Makes the group of all ranks of a job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/collectives/collective.h"

namespace millrace::engine {

/// This process's rank and the master's address. torchrun and Millrace's launchers put them into the environment.
struct RankInfo {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without WORLD_SIZE the job has
  /// one rank.
  static Result<RankInfo> FromEnvironment();
};

/// Returns the group of all ranks. They meet at rank 0's TCP store. Groups whose ranks are all on one machine exchange
/// through shared memory, others over TCP. Blocks until all are there or `timeout` has passed.
Result<std::unique_ptr<Collective>> ConnectRanks(const RankInfo& info, Duration timeout);

/// Returns a group over TCP, whichever machines the ranks are on.
Result<std::unique_ptr<Collective>> ConnectTcp(const RankInfo& info, Duration timeout);

/// Returns a group of threads of this process, for tests and for jobs of one rank. Element r belongs to rank r. A call
/// fails if it waits for the others longer than `timeout`, or if one of them was destroyed. Split() blocks until all
/// members have called it, as it does between processes.
std::vector<std::unique_ptr<Collective>> ConnectThreads(int size, Duration timeout = std::chrono::seconds(60));

}  // namespace millrace::engine
