// Makes the group of all ranks of a job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/collectives/collective.h"
#include "millrace/collectives/tcp/secret_bytes.h"

namespace millrace::collectives {

/// This process's rank, the master's address and the ranks' secret. Who starts the ranks puts them into the
/// environment.
struct RankInfo {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  int attempt = 1;          ///< ranks of different attempts do not meet
  SecretBytes secret = {};  ///< the same on all ranks; none: they meet only on one machine, as one user
  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MILLRACE_ATTEMPT and
  /// MILLRACE_RANK_SECRET. Without WORLD_SIZE the job has one rank. Takes the secret out of the environment and wipes
  /// it there, so that no child and no core file has it: call it once, before there are threads that read the
  /// environment.
  static Result<RankInfo> FromEnvironment();
};

/// Returns the group of all ranks. They meet at a store on rank 0, and prove to each other that they have the secret.
/// Groups whose ranks are all on one machine exchange through shared memory, others over TCP. Blocks until all are
/// there or `timeout` has passed.
/// Errors: kInvalidArgument without a secret where other machines reach the meeting; kUnavailable, also if the secrets
/// differ.
Result<std::unique_ptr<Collective>> ConnectRanks(const RankInfo& info, Duration timeout);

/// Returns a group over TCP, whichever machines the ranks are on.
Result<std::unique_ptr<Collective>> ConnectTcp(const RankInfo& info, Duration timeout);

/// Returns a group of threads of this process, for tests and for jobs of one rank. Element r belongs to rank r. A call
/// fails if it waits for the others longer than `timeout`, or if one of them was destroyed. Split() blocks until all
/// members have called it, as it does between processes.
std::vector<std::unique_ptr<Collective>> ConnectThreads(int size, Duration timeout = std::chrono::seconds(60));

}  // namespace millrace::collectives
