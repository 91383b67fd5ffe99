#include "millrace/engine/models/recorded_steps.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "millrace/engine/device/host_memory.h"

namespace millrace::engine {
namespace {

/// Rows that are computed for `sequences` sequences. Rows without a sequence cost little, and each number is a
/// recording.
std::int64_t RowsFor(std::int64_t sequences) {
  constexpr std::int64_t kExact = 4, kFine = 8, kFew = 64, kCoarse = 32;
  if (sequences <= kExact) return sequences;
  const std::int64_t step = sequences <= kFew ? kFine : kCoarse;
  return (sequences + step - 1) / step * step;
}

/// Sequences are taken for so long. The length decides among how many blocks of threads their keys are divided.
std::int64_t LengthFor(std::int64_t longest, std::int64_t max_positions) {
  constexpr std::uint64_t kShort = 128;
  const std::uint64_t length = std::max(kShort, std::bit_ceil(static_cast<std::uint64_t>(longest)));
  return std::min(static_cast<std::int64_t>(length), max_positions);
}

}  // namespace

RecordedSteps::Step& RecordedSteps::MakeStep(const Key& key) {
  const std::int64_t rows = key.sequences, in_block = cache_.shape().block_tokens;
  const std::int64_t width = (key.longest + in_block - 1) / in_block;
  Step step;
  step.ids = at::zeros({rows}, at::device(device_).dtype(at::kLong));
  step.places = at::zeros({rows * (1 + width)}, at::device(device_).dtype(at::kInt));
  step.tables = ops::BlockTables::Written(step.places.narrow(0, rows, rows * width).view({rows, width}));
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(rows), 1), past(lengths.size(), key.longest - 1);
  Step& made = steps_.emplace(key, std::move(step)).first->second;
  made.context = ForwardContext{.sequences = ops::Sequences::Following(lengths, past, made.places.narrow(0, 0, rows)),
                                .cache = &cache_,
                                .tables = &made.tables};
  made.context->sequences.BoundsOn(device_);  // is copied now: a recording would copy it each time
  return made;
}

void RecordedSteps::Write(Step& step, const at::Tensor& ids, const ops::Sequences& sequences,
                          const ops::BlockTables& tables) const {
  const std::int64_t rows = step.ids.numel(), width = step.places.numel() / rows - 1;
  const at::Tensor places = EmptyOnHost(step.places.sizes(), at::kInt, device_);
  auto* const position = places.data_ptr<std::int32_t>();
  std::fill_n(position, rows, 0);
  std::fill_n(position + rows, rows * width, -1);
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    position[i] = static_cast<std::int32_t>(sequences.past(i));
    const std::span<const std::int32_t> table = tables.Of(i);
    std::ranges::copy(table.first(std::min(table.size(), static_cast<std::size_t>(width))),
                      position + rows + i * width);
  }
  step.places.copy_(places, /*non_blocking=*/true);
  step.ids.narrow(0, 0, sequences.count()).copy_(ids, /*non_blocking=*/true);
}

at::Tensor RecordedSteps::Run(const at::Tensor& ids, const ops::Sequences& sequences, const ops::BlockTables& tables,
                              std::int64_t max_positions, const Compute& compute) {
  const std::int64_t count = sequences.count();
  const Key key{.sequences = RowsFor(count), .longest = LengthFor(sequences.limit(), max_positions)};
  const auto found = steps_.find(key);
  Step& step = found == steps_.end() ? MakeStep(key) : found->second;
  Write(step, ids, sequences, tables);
  if (!step.is_prepared || !step.is_recorded) {
    const at::Tensor logits = compute(step.ids, *step.context);
    if (!logits_.contains(key.sequences)) logits_[key.sequences] = at::empty_like(logits);
    step.is_prepared = true;
    return logits.narrow(0, 0, count);
  }
  const at::Tensor logits = logits_.at(key.sequences);
  if (!step.work) {
    try {
      step.work.emplace(recorder_.Record([&step, compute, logits] { logits.copy_(compute(step.ids, *step.context)); }));
    } catch (const c10::OutOfMemoryError&) {
      step.is_recorded = false;
      return compute(step.ids, *step.context).narrow(0, 0, count);
    }
  }
  step.work->Replay();
  return logits.narrow(0, 0, count).clone();  // the next step overwrites it
}

}  // namespace millrace::engine
