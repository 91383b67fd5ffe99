#include "millrace/engine/sharding/data_exchange.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "millrace/engine/errors.h"
#include "millrace/engine/sharding/divided_gradients.h"

namespace millrace::engine {
namespace {

/// Uses that are looked ahead before values are freed: a part uses two groups at most, its own and a tied embedding.
constexpr std::size_t kUsesAhead = 2;

/// Returns a rank's part of what all ranks have.
at::Tensor PartOf(const at::Tensor& all, const Sharding& sharding) {
  const std::int64_t count = all.numel() / sharding.parts();
  return all.narrow(0, sharding.part() * count, count);
}

}  // namespace

void UseOrder::Restart() {
  if (!recorded_.empty()) expected_ = std::exchange(recorded_, {});
  as_expected_ = true;
}

void UseOrder::Add(std::size_t group) {
  as_expected_ = as_expected_ && recorded_.size() < expected_.size() && expected_[recorded_.size()] == group;
  recorded_.push_back(group);
}

std::optional<std::size_t> UseOrder::Next(std::size_t ahead) const {
  const std::size_t at = recorded_.size() + ahead;
  if (!as_expected_ || at >= expected_.size()) return std::nullopt;
  return expected_[at];
}

DataExchange::DataExchange(ParameterBuffer& buffer, const StateRanks& ranks, DataExchangeOptions options)
    : buffer_(buffer), ranks_(ranks), options_(options), sharding_(buffer.sharding()), groups_(buffer.groups().size()) {
  TORCH_CHECK(StateRanks::SizeOf(ranks.shard) == sharding_.ranks && (sharding_.zero > 0 || sharding_.ranks == 1),
              "the parameters are divided among other ranks than the shard group's");
  TORCH_CHECK(options.overlap || !sharding_.divides_gradients(), "divided gradients are summed during the passes");
  TORCH_CHECK(ranks.tensor.size() == 1 || ranks.stage != nullptr, "tensor ranks need the group of their stage");
  for (const ParameterGroup& part : buffer.groups()) {
    for (const std::size_t used : part.uses) ++groups_[used].parts;
  }
  MakeBuckets();
  if (!IsAlone()) buffer_.hooks = this;
}

DataExchange::~DataExchange() {
  if (buffer_.hooks == this) buffer_.hooks = nullptr;
}

bool DataExchange::IsAlone() const { return StateRanks::SizeOf(ranks_.replica) == 1 && !sharding_.divides_state(); }

void DataExchange::MakeBuckets() {
  std::int64_t bytes = options_.bucket_bytes;
  for (std::size_t group = groups_.size(); group-- > 0;) {
    if (!IsTrainable(group)) continue;
    if (sharding_.divides_state() || bytes >= options_.bucket_bytes) {
      buckets_.push_back({.first = group, .last = group});
      bytes = 0;
    }
    buckets_.back().first = group;
    bytes += buffer_.groups()[group].size() * static_cast<std::int64_t>(sizeof(float));
  }
}

Status DataExchange::Wait(Collective::Operation& operation) {
  const auto start = std::chrono::steady_clock::now();
  Status status = std::exchange(operation, nullptr)->Wait();
  waited_ += std::chrono::steady_clock::now() - start;
  return status;
}

void DataExchange::BeginStep(int micro_batches) {
  TORCH_CHECK(!in_step_, "a step begins before the last one has ended");
  in_step_ = true;
  micro_batches_ = micro_batches;
  started_ = 0;
  waited_ = {};
  step_order_.Restart();
  for (GroupState& group : groups_) {
    group.backwards = group.open_backwards = group.forwards_ahead = 0;
    group.replicas_summed = false;
  }
}

Result<Duration> DataExchange::Finish() {
  in_step_ = false;
  outside_order_.Restart();
  if (!IsAlone()) {
    Status flushed = Flush();
    reductions_.clear();  // waits for those that an error left
    MR_TRY(std::move(flushed));
    MR_TRY(sharding_.divides_values() ? FreeAllValues() : WaitForValues());
  }
  const auto start = std::chrono::steady_clock::now();
  MR_TRY(SumPartialGradients(buffer_, ranks_));
  waited_ += std::chrono::steady_clock::now() - start;
  return waited_;
}

/// Sums what the passes have left, as parameters that they did not reach.
Status DataExchange::Flush() {
  if (!sharding_.divides_gradients()) {
    for (GroupState& group : groups_) group.backwards = group.parts * micro_batches_;
    MR_TRY(StartCompleteBuckets());
  }
  MR_TRY(EndScatters());
  for (std::size_t group = groups_.size(); group-- > 0;) {
    if (sharding_.divides_gradients() && buffer_.HasGradients(group)) MR_TRY(StartReduction({group, group}));
  }
  MR_TRY(EndScatters());
  for (std::size_t group = groups_.size(); group-- > 0;) {
    if (sharding_.divides_gradients() && IsTrainable(group) && !groups_[group].replicas_summed) {
      StartReplicaSum(reductions_.emplace_back(Reduction{.bucket = {group, group}}));
    }
  }
  Status outcome;
  for (Reduction& reduction : reductions_) {
    if (Status ended = EndReplicaSum(reduction); !ended && outcome) outcome = std::move(ended);
  }
  return outcome;
}

// Gradients.

at::Tensor DataExchange::GradientsOf(const Bucket& bucket) const {
  if (sharding_.divides_state()) return buffer_.GroupGradients(bucket.first);
  const ParameterGroup &first = buffer_.groups()[bucket.first], &last = buffer_.groups()[bucket.last];
  return buffer_.gradients().narrow(0, first.trained_begin, last.trained_begin + last.size() - first.trained_begin);
}

Status DataExchange::StartCompleteBuckets() {
  for (; started_ < buckets_.size(); ++started_) {
    const Bucket& bucket = buckets_[started_];
    for (std::size_t group = bucket.first; group <= bucket.last; ++group) {
      if (IsTrainable(group) && !IsComplete(groups_[group])) return {};
    }
    MR_TRY(StartReduction(bucket));
  }
  return {};
}

Status DataExchange::StartReduction(const Bucket& bucket) {
  const at::Tensor gradients = GradientsOf(bucket);
  if (gradients.numel() == 0) return {};
  Reduction reduction{.bucket = bucket};
  if (sharding_.divides_state()) {
    reduction.sent = options_.reduce_in_bf16 ? gradients.to(at::kBFloat16) : gradients;
    reduction.scatter = AddsSums()
                            ? ranks_.shard->StartReduceScatter(buffer_.OwnedGradients(bucket.first), gradients,
                                                               engine::Reduction::kAddSum)
                            : ranks_.shard->StartReduceScatter(PartOf(reduction.sent, sharding_), reduction.sent);
    if (sharding_.divides_gradients() && options_.reduce_in_bf16) buffer_.FreeGradients(bucket.first);
  } else {
    StartReplicaSum(reduction);
  }
  // While this one runs, the memory of those before it is freed, and their sums over replicas start.
  Status ended = EndEarlierSums();
  reductions_.push_back(std::move(reduction));
  return ended;
}

Status DataExchange::EndEarlierSums() {
  if (options_.reduce_in_bf16) {
    for (Reduction& reduction : reductions_) MR_TRY(EndReplicaSum(reduction));
  }
  if (options_.reduce_in_bf16 || sharding_.divides_gradients() || StateRanks::SizeOf(ranks_.replica) > 1) {
    MR_TRY(EndScatters());
  }
  return {};
}

Status DataExchange::EndScatters() {
  for (Reduction& reduction : reductions_) MR_TRY(EndScatter(reduction));
  std::erase_if(reductions_, [](const Reduction& reduction) { return !reduction.reduce; });
  return {};
}

Status DataExchange::EndScatter(Reduction& reduction) {
  if (!reduction.scatter) return {};
  const std::size_t group = reduction.bucket.first;
  MR_TRY(Wait(reduction.scatter));
  const at::Tensor sum = PartOf(std::exchange(reduction.sent, {}), sharding_);
  const at::Tensor owned = buffer_.OwnedGradients(group);
  if (AddsSums()) {
    buffer_.FreeGradients(group);
  } else if (sharding_.divides_gradients()) {
    owned.add_(sum);
  } else {
    if (options_.reduce_in_bf16) owned.copy_(sum);
    // The next step adds to the gradients of the whole group.
    const at::Tensor all = buffer_.GroupGradients(group);
    const std::int64_t begin = sharding_.part() * owned.numel(), end = begin + owned.numel();
    all.narrow(0, 0, begin).zero_();
    all.narrow(0, end, all.numel() - end).zero_();
  }
  if (IsComplete(groups_[group]) && !groups_[group].replicas_summed) StartReplicaSum(reduction);
  return {};
}

void DataExchange::StartReplicaSum(Reduction& reduction) {
  groups_[reduction.bucket.first].replicas_summed = true;
  if (StateRanks::SizeOf(ranks_.replica) == 1) return;
  const at::Tensor gradients =
      sharding_.divides_state() ? buffer_.OwnedGradients(reduction.bucket.first) : GradientsOf(reduction.bucket);
  if (gradients.numel() == 0) return;
  reduction.sent = options_.reduce_in_bf16 ? gradients.to(at::kBFloat16) : gradients;
  reduction.reduce = ranks_.replica->StartAllReduce(reduction.sent);
}

Status DataExchange::EndReplicaSum(Reduction& reduction) {
  if (!reduction.reduce) return {};
  MR_TRY(Wait(reduction.reduce));
  if (!options_.reduce_in_bf16) return {};
  const at::Tensor gradients =
      sharding_.divides_state() ? buffer_.OwnedGradients(reduction.bucket.first) : GradientsOf(reduction.bucket);
  gradients.copy_(std::exchange(reduction.sent, {}));
  return {};
}

// Values.

void DataExchange::ShareValues(ChangedValues changed) {
  if (!sharding_.divides_state()) return;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (changed == ChangedValues::kTrained && !IsTrainable(group)) continue;
    groups_[group].gather.reset();  // waits
    if (sharding_.divides_values()) {
      buffer_.FreeValues(group);
    } else {
      StartGather(group);
    }
  }
}

Status DataExchange::WaitForValues() {
  for (std::size_t group = 0; group < groups_.size(); ++group) MR_TRY(WaitForGather(group));
  return {};
}

void DataExchange::StartGather(std::size_t group) {
  if (buffer_.groups()[group].size() == 0) return;
  groups_[group].gather = ranks_.shard->StartAllGather(buffer_.GroupValues(group), buffer_.OwnedValues(group));
}

Status DataExchange::WaitForGather(std::size_t group) {
  if (!groups_[group].gather) return {};
  return Wait(groups_[group].gather);
}

Status DataExchange::BringValues(std::size_t group) {
  if (!sharding_.divides_values()) return WaitForGather(group);
  const auto start = [this](std::size_t wanted) {
    if (buffer_.HasValues(wanted)) return;
    buffer_.AllocateValues(wanted);
    StartGather(wanted);
  };
  order().Add(group);
  ++groups_[group].users;
  start(group);
  if (const auto next = order().Next()) start(*next);
  return WaitForGather(group);
}

bool DataExchange::IsUsedSoon(std::size_t group) {
  for (std::size_t ahead = 0; ahead < kUsesAhead; ++ahead) {
    if (order().Next(ahead) == group) return true;
  }
  return false;
}

void DataExchange::LetValuesGo(std::size_t group, bool may_free) {
  if (!sharding_.divides_values()) return;
  if (--groups_[group].users == 0 && may_free && !IsUsedSoon(group)) buffer_.FreeValues(group);
}

Status DataExchange::FreeAllValues() {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    MR_TRY(WaitForGather(group));
    buffer_.FreeValues(group);
  }
  return {};
}

// Hooks.

void DataExchange::BeforeForward(std::size_t group) {
  if (in_step_) ++groups_[group].forwards_ahead;
  ThrowIfFailed(BringValues(group));
}

void DataExchange::AfterForward(std::size_t group) { LetValuesGo(group, options_.reshard || !in_step_); }

void DataExchange::BeforeBackward(std::size_t group) {
  TORCH_CHECK(in_step_, "a backward pass runs outside of a step");
  ++groups_[group].open_backwards;
  ThrowIfFailed(BringValues(group));
  if (!sharding_.divides_gradients() || !IsTrainable(group)) return;
  // Those of the micro-batch before may still be on their way.
  for (Reduction& reduction : reductions_) {
    if (reduction.bucket.first == group) ThrowIfFailed(EndScatter(reduction));
  }
  if (!buffer_.HasGradients(group)) buffer_.AllocateGradients(group);
}

void DataExchange::AfterBackward(std::size_t group) {
  GroupState& state = groups_[group];
  --state.forwards_ahead;
  LetValuesGo(group, options_.reshard || state.forwards_ahead == 0);
  ++state.backwards;
  --state.open_backwards;
  if (!IsTrainable(group)) return;
  if (!sharding_.divides_gradients()) {
    if (options_.overlap) ThrowIfFailed(StartCompleteBuckets());
  } else if (state.open_backwards == 0 && state.backwards % state.parts == 0) {
    ThrowIfFailed(StartReduction({group, group}));
  }
}

}  // namespace millrace::engine
