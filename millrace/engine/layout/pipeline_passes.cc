#include "millrace/engine/layout/pipeline_passes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace millrace::engine {
namespace {

/// The passes of one kind through several stages a rank: `ranks` micro-batches through one stage, then through the
/// next, then the next micro-batches. Micro-batches are filled up to a multiple of the ranks.
std::vector<PipelinePass> InGroups(const PipelineShape& shape, PassKind kind) {
  std::vector<PipelinePass> passes;
  for (int begin = 0; begin < shape.micro_batches; begin += shape.ranks) {
    for (int i = 0; i < shape.virtual_stages; ++i) {
      const int stage = kind == PassKind::kForward ? i : shape.virtual_stages - 1 - i;
      for (int each = 0; each < shape.ranks; ++each) passes.push_back({kind, stage, begin + each});
    }
  }
  return passes;
}

/// Leaves out the micro-batches that InGroups added. What is left keeps its order, and waits for nothing that it did
/// not wait for before; so it cannot wait in a circle either.
void RemoveFilling(std::vector<PipelinePass>& passes, int micro_batches) {
  std::erase_if(passes, [&](const PipelinePass& pass) { return pass.micro_batch >= micro_batches; });
}

std::vector<PipelinePass> SimplePasses(const PipelineShape& shape) {
  std::vector<PipelinePass> passes;
  for (int i = 0; i < shape.micro_batches; ++i) passes.push_back({PassKind::kForward, 0, i});
  for (int i = 0; i < shape.micro_batches; ++i) passes.push_back({PassKind::kBackward, 0, i});
  return passes;
}

/// `warm_up` forward passes, then one forward and one backward pass in turn.
std::vector<PipelinePass> OneInTurn(const std::vector<PipelinePass>& forward, const std::vector<PipelinePass>& backward,
                                    std::size_t warm_up) {
  std::vector<PipelinePass> passes(forward.begin(),
                                   forward.begin() + static_cast<std::ptrdiff_t>(std::min(warm_up, forward.size())));
  for (std::size_t i = 0; i < backward.size(); ++i) {
    if (i + warm_up < forward.size()) passes.push_back(forward[i + warm_up]);
    passes.push_back(backward[i]);
  }
  return passes;
}

std::vector<PipelinePass> InterleavedPasses(const PipelineShape& shape, int rank) {
  const int warm_up = 2 * (shape.ranks - rank - 1) + (shape.virtual_stages - 1) * shape.ranks;
  std::vector<PipelinePass> passes = OneInTurn(InGroups(shape, PassKind::kForward),
                                               InGroups(shape, PassKind::kBackward), static_cast<std::size_t>(warm_up));
  RemoveFilling(passes, shape.micro_batches);
  return passes;
}

std::vector<PipelinePass> OneStageInTurn(const PipelineShape& shape, int rank) {
  std::vector<PipelinePass> forward, backward;
  for (int i = 0; i < shape.micro_batches; ++i) {
    forward.push_back({PassKind::kForward, 0, i});
    backward.push_back({PassKind::kBackward, 0, i});
  }
  return OneInTurn(forward, backward, static_cast<std::size_t>(shape.ranks - rank - 1));
}

/// 1F1B in which rank r adds weight gradients r micro-batches late. A later rank has fewer micro-batches in flight, so
/// it has memory for them. It adds the last ones while it would otherwise wait.
std::vector<PipelinePass> ZeroBubblePasses(const PipelineShape& shape, int rank) {
  std::vector<PipelinePass> passes;
  for (const PipelinePass& pass : OneStageInTurn(shape, rank)) {
    if (pass.kind == PassKind::kForward) {
      passes.push_back(pass);
      continue;
    }
    passes.push_back({PassKind::kBackwardInput, 0, pass.micro_batch});
    if (pass.micro_batch >= rank) passes.push_back({PassKind::kBackwardWeight, 0, pass.micro_batch - rank});
  }
  for (int i = std::max(0, shape.micro_batches - rank); i < shape.micro_batches; ++i) {
    passes.push_back({PassKind::kBackwardWeight, 0, i});
  }
  return passes;
}

}  // namespace

std::string PipelineShape::ToText() const {
  static constexpr std::string_view kNames[] = {"simple", "1f1b", "interleaved", "zero_bubble"};
  return fmt::format("{}, {} ranks × {} stages, {} micro-batches", kNames[static_cast<std::size_t>(schedule)], ranks,
                     virtual_stages, micro_batches);
}

std::vector<PipelinePass> TrainingPasses(const PipelineShape& shape, int rank) {
  if (shape.virtual_stages > 1) return InterleavedPasses(shape, rank);
  if (shape.ranks > 1 && shape.schedule == PipelineSchedule::kSimple) return SimplePasses(shape);
  if (shape.ranks > 1 && shape.schedule == PipelineSchedule::kZeroBubble) return ZeroBubblePasses(shape, rank);
  return OneStageInTurn(shape, rank);
}

std::vector<PipelinePass> EvaluationPasses(const PipelineShape& shape) {
  std::vector<PipelinePass> passes = InGroups(shape, PassKind::kForward);
  RemoveFilling(passes, shape.micro_batches);
  return passes;
}

std::vector<PipelineMessage> MessagesBetween(const PipelineShape& shape, const std::vector<PipelinePass>& passes,
                                             int sender, int receiver) {
  std::vector<PipelineMessage> messages;
  for (const PipelinePass& pass : passes) {
    if (pass.kind == PassKind::kBackwardWeight) continue;
    const bool is_gradient = pass.kind != PassKind::kForward;
    const int stage = shape.ranks * pass.stage + sender + (is_gradient ? -1 : 1);
    if (stage >= 0 && stage < shape.stages() && stage % shape.ranks == receiver) {
      messages.push_back({is_gradient, stage, pass.micro_batch});
    }
  }
  return messages;
}

}  // namespace millrace::engine
