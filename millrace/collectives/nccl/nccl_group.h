// A group of ranks whose GPUs exchange over NCCL.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/collectives/collective.h"
#include "millrace/collectives/nccl/nccl_api.h"
#include "millrace/collectives/nccl/side_stream.h"

namespace millrace::collectives {

/// The options of an NCCL group.
struct NcclOptions {
  std::shared_ptr<NcclApi> api;
  std::shared_ptr<StreamDevice> device;
  Duration timeout;
  /// Selects the elements that go over NCCL. The others go through the inner group. Empty: those that are not in the
  /// memory of the host.
  std::function<bool(const Elements&)> takes = {};
  /// The ranks of the group by their numbers in the job, which errors name. Empty: the group is the job.
  std::vector<int> in_job = {};
};

/// Returns a group that takes the elements of a GPU to NCCL. `inner` has the same ranks; each rank has a GPU of its
/// own. All of them call it. Blocks until they are connected. Groups that are split from this one are of its kind. A
/// group of one rank is `inner` itself.
///
/// Pending::Wait() does not wait for the GPU: what the thread starts next waits, on its current stream. It waits until
/// the operation is launched. An operation is launched when the rank before this one has started the same operation.
/// Ranks compare their operations through `inner`. So different operations and lost ranks are errors, and no GPU hangs.
/// An operation begins when the GPU has done what it was given before Start…().
///
/// Operations run on a stream of their own, and so do messages from and to each peer, on communicators of their own.
/// Lost ranks: each rank sends a sign of life to the next one four times a second. If one ends, or an operation is late
/// by `timeout`, the group aborts NCCL's communicators, and all its later calls fail. A Wait() that came before may
/// have succeeded: the GPU's memory is then undefined, and no exchange of this group, nor of `inner`, succeeds any
/// more. So nothing that ranks agree on (a checkpoint, say) comes of it.
///
/// Sums: NCCL adds in an order of its own, which depends on the machines, and rounds bfloat16 and float16 at each
/// addition. The same ranks on the same machines get the same bits, and all ranks get the same.
/// Errors: those of Collective.
Result<std::unique_ptr<Collective>> MakeNcclGroup(std::unique_ptr<Collective> inner, NcclOptions options);

}  // namespace millrace::collectives
