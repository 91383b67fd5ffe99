// The exchanges of ranks that see different samples: gradients, and the parameters that the ranks divide.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"
#include "millrace/engine/parameters/parameter_buffer.h"
#include "millrace/engine/parameters/state_ranks.h"

namespace millrace::engine {

struct DataExchangeOptions {
  bool reshard = true;          ///< with stage 3: a group's values are freed between its forward and its backward pass
  bool reduce_in_bf16 = false;  ///< gradients travel as bfloat16; they are added in float32 and rounded once
  /// Sums of gradients begin as soon as a backward pass has completed them. False: in Finish(); only of stages 0 and 1.
  bool overlap = true;
  /// The least bytes of an all-reduce without sharding: 8 MiB amortise its latency and still overlap with the
  /// backward pass.
  std::int64_t bucket_bytes = 8 << 20;
};

/// The owned values that are new: all, or those of trainable groups.
enum class ChangedValues { kAll, kTrained };

/// Predicts which parameters are used next: records the order in which groups are used, and expects the same order the
/// next time. A value type.
class UseOrder {
 public:
  /// Begins from the start: what was recorded since the last call is expected from now on, if it is anything.
  void Restart();
  /// Records a use. A use that was not expected ends the expectations until the next Restart().
  void Add(std::size_t group);
  /// Returns the group that is expected to be used after `ahead` others; nothing if that is not known.
  std::optional<std::size_t> Next(std::size_t ahead = 0) const;

 private:
  std::vector<std::size_t> expected_, recorded_;
  bool as_expected_ = true;
};

/// Sums gradients over the ranks along the shard and the replica axis, and brings the parameters of a group where a
/// pass needs them. It overlaps both with the passes. It sets ParameterBuffer::hooks. What happens depends on the
/// buffer's Sharding:
///
/// | stage | gradients                                      | parameters                                            |
/// |-------|------------------------------------------------|-------------------------------------------------------|
/// | 0     | all-reduced once a step                        | every rank has them                                   |
/// | 1     | reduce-scattered once a step                   | gathered after the update, beside the next passes     |
/// | 2     | reduce-scattered in each micro-batch and freed | as 1                                                  |
/// | 3     | as 2                                           | gathered before each use and freed after it           |
///
/// With a schedule that begins the next backward pass before it has computed all gradients of the last one (zero
/// bubble), stages 2 and 3 scatter the gradients of several micro-batches together.
///
/// If there are replicas of the shards (hybrid sharding), each rank's part is then all-reduced over the replicas, once
/// a step. All operations run in the same order on all ranks, because all ranks call the hooks in the same order.
///
/// A step is: BeginStep(), the passes of all micro-batches with Model::Forward() and Model::Backward(), Finish(),
/// GradientNorm(), Optimizer::Step(), ShareValues(). Between steps, forward passes may run (evaluation), and owned
/// values may be saved. One thread at a time.
/// REQUIRES: `buffer` and the groups of `ranks` outlive this object, and buffer.sharding() has ranks.shard's rank and
/// size. buffer.EnableGradients() was called.
class DataExchange final : public GroupHooks {
 public:
  DataExchange(ParameterBuffer& buffer, const StateRanks& ranks, DataExchangeOptions options = {});
  ~DataExchange() override;
  DataExchange(const DataExchange&) = delete;
  DataExchange& operator=(const DataExchange&) = delete;

  /// Begins a step. `micro_batches`: how often each part of the model runs backward before Finish().
  void BeginStep(int micro_batches);
  /// Ends the passes of a step. Afterwards the owned gradients are the sums over all samples and over the ranks that
  /// see a part of them (tensor ranks, the two stages of a tied embedding). A parameter that no pass reached has a
  /// gradient of zero. Blocks. Returns how long the calling thread waited for other ranks since BeginStep(). Errors:
  /// kUnavailable if a rank is lost.
  Result<Duration> Finish();
  /// Starts to bring the ranks' owned values to all of them. Call it on all ranks after owned values were changed: with
  /// kTrained by Optimizer::Step(), with kAll from a checkpoint. A forward pass waits for what it needs.
  void ShareValues(ChangedValues changed);
  /// Blocks until ShareValues() is done. Passes need not call it.
  Status WaitForValues();

  // These throw ErrorException if a rank is lost.
  void BeforeForward(std::size_t group) override;
  void AfterForward(std::size_t group) override;
  void BeforeBackward(std::size_t group) override;
  void AfterBackward(std::size_t group) override;

 private:
  /// The exchange's view of a parameter group.
  struct GroupState {
    int parts = 0;                 ///< of the model that use it
    int backwards = 0;             ///< uses by backward passes of this step that have ended
    int open_backwards = 0;        ///< uses by backward passes that have not ended
    int forwards_ahead = 0;        ///< uses by forward passes of this step whose backward pass has not ended
    int users = 0;                 ///< uses by passes that run now
    bool replicas_summed = false;  ///< the sum over replicas of this step has begun
    Collective::Operation gather;  ///< of its values; null: none is in progress
  };
  /// Groups whose gradients are summed together: one, or without sharding several.
  struct Bucket {
    std::size_t first = 0, last = 0;
  };
  /// The sum of a bucket, in progress.
  struct Reduction {
    Bucket bucket;
    at::Tensor sent;                ///< what the ranks add: gradients, or a copy of them in bfloat16
    Collective::Operation scatter;  ///< over the shard ranks; null: done, or there is one
    Collective::Operation reduce;   ///< over the replicas; null: not started, or there is one
  };

  bool IsAlone() const;
  bool IsTrainable(std::size_t group) const { return buffer_.groups()[group].trainable; }
  /// Returns whether the group's gradients have everything that this step adds to them.
  bool IsComplete(const GroupState& group) const { return group.backwards == group.parts * micro_batches_; }
  /// Returns whether a scatter adds to the owned gradients itself, chunk by chunk while they are in the cache.
  bool AddsSums() const { return sharding_.divides_gradients() && !options_.reduce_in_bf16; }
  void MakeBuckets();
  UseOrder& order() { return in_step_ ? step_order_ : outside_order_; }
  Status Wait(Collective::Operation& operation);

  // Gradients. Without sharding and with stage 1, buckets start in a fixed order, from the end of the buffer.
  at::Tensor GradientsOf(const Bucket& bucket) const;
  Status StartCompleteBuckets();
  Status StartReduction(const Bucket& bucket);
  Status EndScatter(Reduction& reduction);
  void StartReplicaSum(Reduction& reduction);
  Status EndReplicaSum(Reduction& reduction);
  /// Waits for the sums over the shard ranks, and starts those over the replicas.
  Status EndScatters();
  /// Frees what the sums that have started need no longer. In bfloat16, only one bucket's copies then remain of each
  /// axis: without a bound they would add half of the gradients to the memory of a step.
  Status EndEarlierSums();
  Status Flush();

  // Values.
  Status BringValues(std::size_t group);
  Status WaitForGather(std::size_t group);
  void StartGather(std::size_t group);
  void LetValuesGo(std::size_t group, bool may_free);
  bool IsUsedSoon(std::size_t group);
  Status FreeAllValues();

  ParameterBuffer& buffer_;
  const StateRanks ranks_;
  const DataExchangeOptions options_;
  const Sharding sharding_;
  std::vector<GroupState> groups_;
  std::vector<Bucket> buckets_;  ///< in order of completion
  std::size_t started_ = 0;      ///< buckets of this step
  std::deque<Reduction> reductions_;
  bool in_step_ = false;
  int micro_batches_ = 0;  ///< of this step
  Duration waited_{};      ///< in this step
  UseOrder step_order_, outside_order_;
};

}  // namespace millrace::engine
