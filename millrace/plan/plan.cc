#include "millrace/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "millrace/base/text.h"

namespace millrace::plan {
namespace {

/// Allocators leave gaps, and other processes need some.
constexpr double kUsableMemory = 0.92;

std::string Bytes(double bytes) { return FormatBytes(static_cast<std::uint64_t>(bytes)); }
std::string Seconds(double seconds) {
  return FormatDuration(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

double TokensOfStep(const TrainingSetup& setup) {
  return static_cast<double>(setup.global_batch) * static_cast<double>(setup.sequence_length);
}
/// Returns the model's floating-point operations of a rank in a second.
double AchievedRate(const Plan& plan, const TrainingSetup& setup) {
  return setup.model.FlopsPerToken(static_cast<double>(setup.document_length())) * TokensOfStep(setup) /
         plan.time.total() / setup.ranks;
}

std::string LayoutText(const Layout& layout) {
  const engine::ParallelOptions& options = layout.options;
  std::string text = fmt::format("pipeline {} × replica {} × shard {} × tensor {}", layout.shape.pipeline,
                                 layout.shape.replica, layout.shape.shard, layout.shape.tensor);
  if (options.sequence) text += ", sequence";
  if (options.zero > 0) text += fmt::format(", zero {}", options.zero);
  if (options.pipeline > 1) text += fmt::format(", {}", PipelineScheduleName(options.schedule));
  if (options.virtual_stages > 1) text += fmt::format(" with {} stages a rank", options.virtual_stages);
  if (options.reduce_in_bf16) text += ", reduce bf16";
  if (!options.overlap) text += ", no overlap";
  if (options.recompute != engine::Recompute::kNone) {
    text += fmt::format(", recompute {}", RecomputeName(options.recompute));
    if (options.recompute_every > 1) text += fmt::format(" every {}", options.recompute_every);
    if (options.offload_activations) text += ", activations offloaded";
  }
  return text;
}

std::string ParametersText(const ModelShape& model) {
  const std::int64_t all = model.ParameterCount(), trained = model.TrainedCount();
  std::string text = fmt::format("{} parameters", FormatCount(static_cast<std::uint64_t>(all)));
  if (trained < all) text += fmt::format(" ({} trained)", FormatCount(static_cast<std::uint64_t>(trained)));
  return text;
}

std::string_view ReduceName(const engine::ParallelOptions& options) { return options.reduce_in_bf16 ? "bf16" : "f32"; }

Json OptionsJson(const engine::ParallelOptions& options, const engine::MeshShape& shape) {
  return {{"data", shape.replica * shape.shard},
          {"shard", shape.shard},
          {"tensor", options.tensor},
          {"sequence", options.sequence},
          {"pipeline", options.pipeline},
          {"schedule", PipelineScheduleName(options.schedule)},
          {"virtual_stages", options.virtual_stages},
          {"zero", options.zero},
          {"reshard", options.reshard},
          {"reduce", ReduceName(options)},
          {"overlap", options.overlap},
          {"recompute", RecomputeName(options.recompute)},
          {"recompute_every", options.recompute_every},
          {"offload_activations", options.offload_activations},
          {"placement", options.placement}};
}

Json MemoryJson(const MemoryUse& use) {
  Json json = Json::object();
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    json[std::string(MemoryKindName(static_cast<MemoryKind>(kind)))] = use.bytes[static_cast<std::size_t>(kind)];
  }
  json["total"] = use.total();
  return json;
}

}  // namespace

double MemoryLimit(const TrainingSetup& setup, const Machine& machine) {
  return kUsableMemory * machine.RankMemory(setup.ranks_per_machine);
}

Result<Plan> MakePlan(const TrainingSetup& setup, const engine::ParallelOptions& options, const Machine& machine) {
  Plan plan{.layout = MR_TRY(MakeLayout(setup, options))};
  const LayoutCost cost = CostOfLayout(setup, options, &machine);
  const std::vector<RankShare> shares = SharesOf(setup, plan.layout, cost);
  for (const RankShare& share : shares) {
    plan.memory.push_back(MemoryOf(setup, plan.layout, cost, share, machine));
    if (plan.memory.back().total() > plan.memory[plan.fullest].total()) plan.fullest = plan.memory.size() - 1;
  }
  plan.traffic = TrafficOf(setup, plan.layout, cost, shares[plan.fullest]);
  plan.time = TimeOf(setup, plan.layout, cost, shares, machine);
  plan.memory_limit = MemoryLimit(setup, machine);
  return plan;
}

std::string LayoutYaml(const Layout& layout) {
  const engine::ParallelOptions &options = layout.options, defaults;
  std::string text;
  const auto key = [&](std::string_view name, const auto& value, const auto& absent) {
    if (value != absent) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", name, value);
  };
  key("tensor", options.tensor, defaults.tensor);
  key("sequence", options.sequence, defaults.sequence);
  key("pipeline", options.pipeline, defaults.pipeline);
  key("schedule", PipelineScheduleName(options.schedule), PipelineScheduleName(defaults.schedule));
  key("virtual_stages", options.virtual_stages, defaults.virtual_stages);
  key("zero", options.zero, defaults.zero);
  key("shard", options.shard, defaults.shard);
  key("reshard", options.reshard, options.zero == 3 ? defaults.reshard : options.reshard);
  key("reduce", ReduceName(options), ReduceName(defaults));
  key("overlap", options.overlap, defaults.overlap);
  key("recompute", RecomputeName(options.recompute), RecomputeName(defaults.recompute));
  key("recompute_every", options.recompute_every, defaults.recompute_every);
  key("offload_activations", options.offload_activations, defaults.offload_activations);
  key("placement", options.placement, defaults.placement);
  return fmt::format("{{{}}}", text);
}

std::string PlanText(const Plan& plan, const TrainingSetup& setup, const Machine& machine) {
  const StepTime& time = plan.time;
  std::string text = fmt::format(
      "{}, {} on {} of {}: {}\n{} micro-batch{} of {} × {} tokens on each "
      "data-parallel rank\n",
      ParametersText(setup.model), setup.model.family,
      setup.ranks == 1 ? "1 rank" : fmt::format("{} ranks", setup.ranks), machine.name, LayoutText(plan.layout),
      plan.layout.microbatches, plan.layout.microbatches == 1 ? "" : "es", setup.micro_batch, setup.sequence_length);

  const MemoryUse& use = plan.memory[plan.fullest];
  text += plan.memory.size() == 1 ? "\nmemory of a rank\n"
                                  : fmt::format("\nmemory of a rank of stage {}, the fullest\n", plan.fullest);
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    const std::int64_t bytes = use.bytes[static_cast<std::size_t>(kind)];
    if (bytes > 0) {
      text += fmt::format("  {:<14}{:>12}\n", MemoryKindName(static_cast<MemoryKind>(kind)),
                          Bytes(static_cast<double>(bytes)));
    }
  }
  text += fmt::format("  {:<14}{:>12} of {} that may be used{}\n", "total", Bytes(static_cast<double>(use.total())),
                      Bytes(plan.memory_limit), plan.fits() ? "" : ": DOES NOT FIT");

  text += "\ncommunication of this rank in a step\n";
  text += fmt::format("  {:<9} {:<15} {:<15} {:>9} {:>12} {:>12} {:>10}\n", "axis", "what", "operation", "times",
                      "bytes", "sends", "alone");
  for (const TrafficLine& line : plan.traffic) {
    text += fmt::format("  {:<9} {:<15} {:<15} {:>9} {:>12} {:>12} {:>10}\n", line.axis, line.purpose,
                        ExchangeKindName(line.kind), line.operations, Bytes(static_cast<double>(line.bytes)),
                        Bytes(line.sent()), Seconds(line.Seconds(machine, setup.ranks_per_machine)));
  }

  text += fmt::format("\nstep of {} tokens: {} expected\n",
                      FormatCount(static_cast<std::uint64_t>(TokensOfStep(setup))), Seconds(time.total()));
  const auto part = [&](std::string_view name, double seconds) {
    if (seconds > 0)
      text += fmt::format("  {:<14}{:>12} {:>5.1f} %\n", name, Seconds(seconds), 100 * seconds / time.total());
  };
  part("reference", time.reference);
  part("compute", time.compute);
  part("tensor", time.tensor);
  part("bubble", time.bubble);
  part("messages", time.messages);
  part("gradients", time.gradients);
  part("optimizer", time.optimizer);
  const double rate = TokensOfStep(setup) / time.total();
  const auto count = [](double number) { return FormatCount(static_cast<std::uint64_t>(std::llround(number))); };
  text += fmt::format("{} tokens/s, {} of a rank; {:.3g} TFLOP/s of a rank\n", count(rate), count(rate / setup.ranks),
                      AchievedRate(plan, setup) / 1e12);
  return text;
}

Json PlanJson(const Plan& plan, const TrainingSetup& setup, const Machine& machine) {
  Json memory = Json::array(), traffic = Json::array();
  for (const MemoryUse& use : plan.memory) memory.push_back(MemoryJson(use));
  for (const TrafficLine& line : plan.traffic) {
    traffic.push_back({{"axis", line.axis},
                       {"what", line.purpose},
                       {"operation", ExchangeKindName(line.kind)},
                       {"ranks", line.span.ranks},
                       {"operations", line.operations},
                       {"bytes", line.bytes},
                       {"sent_bytes", line.sent()},
                       {"seconds", line.Seconds(machine, setup.ranks_per_machine)}});
  }
  const StepTime& time = plan.time;
  return {{"event", "layout"},
          {"machine", machine.name},
          {"family", setup.model.family},
          {"parameters", setup.model.ParameterCount()},
          {"trained_parameters", setup.model.TrainedCount()},
          {"ranks", setup.ranks},
          {"parallel", OptionsJson(plan.layout.options, plan.layout.shape)},
          {"micro_batch", setup.micro_batch},
          {"microbatches", plan.layout.microbatches},
          {"memory", memory},
          {"memory_limit", static_cast<std::int64_t>(plan.memory_limit)},
          {"fullest_stage", plan.fullest},
          {"fits", plan.fits()},
          {"communication", traffic},
          {"step",
           {{"seconds", time.total()},
            {"reference_s", time.reference},
            {"compute_s", time.compute},
            {"tensor_s", time.tensor},
            {"bubble_s", time.bubble},
            {"messages_s", time.messages},
            {"gradients_s", time.gradients},
            {"optimizer_s", time.optimizer},
            {"bubble_share", time.bubble_share()},
            {"tokens_per_s", TokensOfStep(setup) / time.total()},
            {"flops_per_rank", AchievedRate(plan, setup)}}}};
}

}  // namespace millrace::plan
