#include "millrace/plan/step_time.h"

#include <algorithm>

namespace millrace::plan {
namespace {

using engine::PipelineSchedule;

/// Of one micro-batch on one rank, in seconds.
struct PassTimes {
  double reference = 0, forward = 0, backward = 0, weights = 0;
  double compute() const { return forward + backward; }
};

PassTimes PassesOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost, const RankShare& share,
                   const Machine& machine) {
  PassTimes times;
  const auto add = [&](const PartCost& part, std::int64_t count) {
    times.reference += static_cast<double>(count) * part.reference_s;
    times.forward += static_cast<double>(count) * part.forward_s;
    times.backward += static_cast<double>(count) * part.backward_s;
    times.weights += static_cast<double>(count) * part.weights_s;
  };
  for (std::size_t kind = 0; kind < share.kinds.size(); ++kind) {
    add(cost.blocks[kind].once, share.kinds[kind].all);
    times.backward += static_cast<double>(share.kinds[kind].recomputed) * cost.blocks[kind].once.forward_s;
  }
  if (share.embeds) add(cost.embedding, 1);
  if (share.head != nullptr) add(*share.head, 1);
  if (OffloadsInputs(layout, machine)) {
    // Copies run beside the passes.
    const double copying = static_cast<double>(InputBytes(setup, layout, share)) / machine.host_bandwidth;
    times.forward = std::max(times.forward, copying);
    times.backward = std::max(times.backward, copying);
  }
  return times;
}

double OptimizerSeconds(const TrainingSetup& setup, const Layout& layout, const RankShare& share,
                        const Machine& machine) {
  // Gradients are read and zeroed, moments and weights read and written. With a master copy, the model's own weights
  // are only written. Before, the gradients' norm reads them.
  const auto master = static_cast<double>(setup.master_bytes()), element = static_cast<double>(setup.element_bytes());
  const double weights = master > 0 ? element : 2 * element;
  const double state = setup.moments * setup.moment_bytes + master;  // in each direction
  const auto all = static_cast<double>(share.trained);
  const double own = layout.options.zero >= 1 ? all / layout.shape.shard : all;
  const double norm = (layout.options.zero >= 2 ? own : all) * 4;
  const double bandwidth = machine.RankBandwidth(setup.ranks_per_machine);
  if (setup.offloads_state && machine.accelerators > 0) {
    // The kernel reads and writes over the bus at once, while it does the rest.
    return std::max(own * state / machine.host_bandwidth, own * (8 + weights) / bandwidth) + norm / bandwidth;
  }
  return (own * (8 + 2 * state + weights) + norm) / bandwidth;
}

/// The time of sums of gradients and gathers of weights that computation does not hide. Both use the same links.
double ExposedSeconds(const Layout& layout, double reduce, double gather, bool gathers_always, const PassTimes& passes,
                      double overlap) {
  const auto m = static_cast<double>(layout.microbatches);
  // With zero 2, each backward pass hides its own sums; before, the last one hides all, unless they begin behind it.
  const double hides = layout.options.zero >= 2 ? m : layout.options.overlap ? 1 : 0;
  const double reducing = overlap * passes.backward * hides;
  const double reduced = std::max(0.0, reduce - reducing);
  if (gathers_always) return std::max(reduced, reduce + gather - overlap * m * passes.compute());
  return reduced + std::max(0.0, gather - overlap * passes.forward);
}

/// Adds the exchanges of one rank.
void AddExchanges(const TrainingSetup& setup, const Layout& layout, const std::vector<TrafficLine>& lines,
                  const PassTimes& passes, const Machine& machine, StepTime& time) {
  double reduce = 0, gather = 0, last_bucket = 0;
  for (const TrafficLine& line : lines) {
    if (line.purpose == kReferencePurpose) continue;
    const double seconds = line.Seconds(machine, setup.ranks_per_machine);
    if (line.axis == "tensor") {
      time.tensor += seconds;
    } else if (line.axis == "pipeline" && line.kind == ExchangeKind::kSend) {
      // While the pipeline fills and drains, each message is waited for.
      const double each = seconds / static_cast<double>(line.operations);
      time.messages += 2 * (layout.options.pipeline - 1) * each + (1 - machine.overlap) * seconds;
    } else if (line.purpose == "gradients" || line.purpose == "weights") {
      (line.kind == ExchangeKind::kAllGather ? gather : reduce) += seconds;
      last_bucket = std::max(last_bucket, seconds / static_cast<double>(line.operations));
    } else {
      time.gradients += seconds;
    }
  }
  const bool gathers_always = layout.options.zero == 3;
  const double exposed =
      std::max(last_bucket, ExposedSeconds(layout, reduce, gather, gathers_always, passes, machine.overlap));
  // What is hidden still takes memory bandwidth and cores from the computation.
  time.gradients += exposed + (1 - machine.overlap) * std::max(0.0, reduce + gather - exposed);
}

/// Forward passes alone. The first stage learns as soon as it has made them, while later stages still receive: so the
/// pipeline fills and drains once in a step, not twice.
double ReferenceSeconds(const TrainingSetup& setup, const Layout& layout, const std::vector<TrafficLine>& lines,
                        const PassTimes& passes, const Machine& machine) {
  if (!setup.compares_pairs) return 0;
  const double computed = static_cast<double>(layout.microbatches) * passes.reference;
  double waited = 0, beside = 0;
  for (const TrafficLine& line : lines) {
    if (line.purpose != kReferencePurpose) continue;
    (line.axis == "tensor" ? waited : beside) += line.Seconds(machine, setup.ranks_per_machine);
  }
  const double exposed = std::max(0.0, beside - machine.overlap * computed);
  return computed + waited + exposed + (1 - machine.overlap) * (beside - exposed);
}

double BubbleOf(const Layout& layout, double pass, double weights) {
  const double others = layout.options.pipeline - 1;
  switch (layout.options.schedule) {
    case PipelineSchedule::kInterleaved:
      return others * pass / layout.options.virtual_stages;
    case PipelineSchedule::kZeroBubble:
      return others * std::max(0.0, pass - 2 * weights);
    case PipelineSchedule::kSimple:
    case PipelineSchedule::k1F1B:
      break;
  }
  return others * pass;
}

}  // namespace

double StepTime::bubble_share() const {
  const double passes = compute + tensor + bubble;
  return passes > 0 ? bubble / passes : 0;
}

StepTime TimeOf(const TrainingSetup& setup, const Layout& layout, const LayoutCost& cost,
                const std::vector<RankShare>& shares, const Machine& machine) {
  const auto m = static_cast<double>(layout.microbatches);
  // Ranks between the first and the last differ in their number of blocks only.
  const RankShare* fullest = &shares.front();
  for (const RankShare& share : shares) {
    if (share.blocks > fullest->blocks) fullest = &share;
  }
  StepTime worst;
  for (const RankShare* share : {&shares.front(), fullest, &shares.back()}) {
    const PassTimes passes = PassesOf(setup, layout, cost, *share, machine);
    const std::vector<TrafficLine> lines = TrafficOf(setup, layout, cost, *share);
    StepTime time{.reference = ReferenceSeconds(setup, layout, lines, passes, machine),
                  .compute = m * passes.compute()};
    AddExchanges(setup, layout, lines, passes, machine, time);
    time.bubble = BubbleOf(layout, passes.compute() + time.tensor / m, passes.weights);
    time.optimizer = OptimizerSeconds(setup, layout, *share, machine);
    if (time.total() > worst.total()) worst = time;
  }
  return worst;
}

}  // namespace millrace::plan
