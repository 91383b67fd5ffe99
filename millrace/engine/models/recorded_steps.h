// Records a step of generation, in which each sequence gets one token, so that a GPU runs the whole step at once.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "millrace/engine/device/recorder.h"
#include "millrace/engine/layers/forward_context.h"

namespace millrace::engine {

/// Keeps one recording for each number of sequences and length of the longest sequence, both rounded up. Makes the
/// recording when such a step is asked for the second time. A step of one sequence is hundreds of kernels of some
/// microseconds each. Without a recording, the GPU waits for the host between the kernels. For one cache and the model
/// that made it. Not thread-safe.
class RecordedSteps {
 public:
  /// Returns logits [n, vocabulary], float32, for ids [n] and their context, without waiting for the GPU.
  using Compute = std::function<at::Tensor(const at::Tensor& ids, const ForwardContext& context)>;

  RecordedSteps(KvCache& cache, at::Device device) : cache_(cache), device_(device), recorder_(device) {}
  /// Sequences of a step, at most.
  static constexpr std::int64_t kMaxSequences = 256;

  /// Returns the logits of a step for the next token of each of n sequences. ids: int64 [n], on the device, or pinned
  /// on the CPU. `max_positions`: of the model. REQUIRES: the work of `compute` depends on the positions and blocks of
  /// single tokens only in what the GPU reads; n <= kMaxSequences, and no sequence is longer than max_positions.
  at::Tensor Run(const at::Tensor& ids, const ops::Sequences& sequences, const ops::BlockTables& tables,
                 std::int64_t max_positions, const Compute& compute);

 private:
  struct Key {
    std::int64_t sequences = 0, longest = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Step {
    at::Tensor ids, places;  ///< on the device; places: int32, a position of each sequence, and then the tables
    ops::BlockTables tables;
    std::optional<ForwardContext> context;
    std::optional<RecordedWork> work;
    bool is_prepared = false;  ///< it has been computed once
    bool is_recorded = true;   ///< otherwise it is computed each time: memory did not suffice
  };
  Step& MakeStep(const Key& key);
  /// Writes what the step is about. Tables longer than the step's are cut: their sequences do not reach that far.
  void Write(Step& step, const at::Tensor& ids, const ops::Sequences& sequences, const ops::BlockTables& tables) const;

  KvCache& cache_;
  const at::Device device_;
  Recorder recorder_;
  std::map<std::int64_t, at::Tensor> logits_;  ///< by the number of sequences: where recorded steps leave them
  std::map<Key, Step> steps_;
};

}  // namespace millrace::engine
