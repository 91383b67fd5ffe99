// The part of NCCL's interface that groups use.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "millrace/base/result.h"

namespace millrace::collectives {

// The values and the sizes are those of nccl.h of NCCL 2.28; nccl_cuda_test compares them where that header is. It is
// not needed: few of the machines that have the library have it.
enum class NcclResult : int { kSuccess = 0, kInProgress = 7 };  // all others are errors
enum class NcclType : int {
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};
enum class NcclReduction : int { kSum = 0, kMax = 2, kMean = 4 };
struct NcclId {
  std::array<char, 128> bytes;
};
using NcclHandle = void*;  ///< a communicator

/// NCCL's functions, for one device. A communicator is used by one thread at a time. Nothing blocks: kInProgress means
/// that AsyncState() will report the end of the call, and that the communicator takes no other before. Operations are
/// given to `stream`, in whose order the device does them.
class NcclApi {
 public:
  virtual ~NcclApi() = default;
  virtual NcclResult GetUniqueId(NcclId* id) = 0;
  virtual NcclResult InitRank(NcclHandle* made, int ranks, const NcclId& id, int rank) = 0;
  virtual NcclResult AsyncState(NcclHandle of, NcclResult* state) = 0;
  virtual NcclResult Finalize(NcclHandle of) = 0;  ///< begins an orderly end, on all ranks
  virtual NcclResult Destroy(NcclHandle of) = 0;
  virtual NcclResult Abort(NcclHandle of) = 0;  ///< ends operations under way, and destroys

  virtual NcclResult AllReduce(void* data, std::size_t count, NcclType type, NcclReduction reduction, NcclHandle with,
                               void* stream) = 0;
  virtual NcclResult ReduceScatter(const void* all, void* mine, std::size_t count_of_mine, NcclType type,
                                   NcclReduction reduction, NcclHandle with, void* stream) = 0;
  virtual NcclResult AllGather(const void* mine, void* all, std::size_t count_of_mine, NcclType type, NcclHandle with,
                               void* stream) = 0;
  virtual NcclResult Broadcast(void* data, std::size_t count, NcclType type, int root, NcclHandle with,
                               void* stream) = 0;
  virtual NcclResult Send(const void* data, std::size_t count, NcclType type, int to, NcclHandle with,
                          void* stream) = 0;
  virtual NcclResult Receive(void* data, std::size_t count, NcclType type, int from, NcclHandle with, void* stream) = 0;

  /// Returns NCCL's text for a result: "unhandled system error (…)".
  virtual std::string Text(NcclResult result) = 0;
};

/// Loads libnccl.so.2: the one that libtorch uses, if it does, otherwise the system's. Errors: kUnavailable if there is
/// none, or one older than 2.14.
Result<std::shared_ptr<NcclApi>> LoadNccl();

}  // namespace millrace::collectives
