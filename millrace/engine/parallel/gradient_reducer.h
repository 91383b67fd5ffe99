// Sums gradients over data-parallel ranks while the backward pass still runs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/parameters.h"

namespace millrace::engine {

/// Cuts a model's gradient buffer into buckets from its end, the order in which a backward pass completes gradients.
/// Once all gradients of a bucket are added, its all-reduce starts; buckets start in the same order on every rank.
/// `parameters` and `group` must outlive it; it owns ParameterBuffer::on_gradient. One thread.
class GradientReducer {
 public:
  GradientReducer(ParameterBuffer& parameters, Collective& group, std::int64_t bucket_bytes = 8 << 20);
  ~GradientReducer();

  /// Before the backward pass of a step's last micro-batch; those before only add to the buffer.
  void Arm();
  /// After that pass: waits until every bucket is summed. Returns how long the caller stood still.
  Result<Duration> Finish();

  std::size_t buckets() const { return buckets_.size(); }

 private:
  struct Bucket {
    std::int64_t begin, end;  ///< elements of the gradient buffer
    int uses = 0;             ///< additions that one backward pass makes
    int missing = 0;          ///< of those, still to come
  };
  void OnGradient(std::int64_t begin, std::int64_t end);
  void StartComplete();

  ParameterBuffer& parameters_;
  Collective& group_;
  std::vector<Bucket> buckets_;         ///< in order of completion
  std::vector<std::size_t> bucket_of_;  ///< per parameter
  std::size_t started_ = 0;
  std::vector<std::unique_ptr<Collective::Pending>> pending_;
};

}  // namespace millrace::engine
