// Sums gradients over data-parallel ranks while the backward pass runs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// Divides a model's gradient buffer into buckets, from its end, because a backward pass completes gradients in that
/// order. When all gradients of a bucket are complete, its all-reduce starts. Buckets start in the same order on every
/// rank. Sets ParameterBuffer::on_gradient. One thread at a time.
/// REQUIRES: `parameters` and `group` outlive this object.
class GradientReducer {
 public:
  /// `bucket_bytes`: 8 MiB amortise the latency of an all-reduce and still overlap with the backward pass.
  GradientReducer(ParameterBuffer& parameters, Collective& group, std::int64_t bucket_bytes = 8 << 20);
  ~GradientReducer();

  /// Call it before the backward pass of a step's last micro-batch. Earlier passes only add to the buffer.
  void Arm();
  /// Call it after that pass. Blocks until every bucket is summed. Returns how long it blocked.
  Result<Duration> Finish();

  std::size_t buckets() const { return buckets_.size(); }

 private:
  struct Bucket {
    std::int64_t begin, end;  ///< elements of the gradient buffer
    int uses = 0;             ///< the number of additions that a backward pass makes
    int missing = 0;          ///< the number of additions that this pass has not made yet
  };
  void OnGradient(std::int64_t begin, std::int64_t end);
  void StartComplete();

  ParameterBuffer& parameters_;
  Collective& group_;
  std::vector<Bucket> buckets_;         ///< in order of completion
  std::vector<std::size_t> bucket_of_;  ///< per parameter
  std::size_t started_ = 0;
  std::vector<Collective::Operation> pending_;
};

}  // namespace millrace::engine
