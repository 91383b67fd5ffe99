#include "apps/millrace/jobs/plan_command.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "apps/common/output.h"
#include "apps/millrace/cli/engine_program.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/config/peft_config.h"
#include "millrace/jobs/cost.h"
#include "millrace/jobs/spec/model_config.h"
#include "millrace/jobs/training_setup.h"
#include "millrace/plan/machine.h"
#include "millrace/plan/plan.h"
#include "millrace/plan/search.h"
#include "millrace/tokenizer/open/open.h"

namespace millrace::cli {
namespace {

constexpr auto kPlanPatience = std::chrono::seconds(30);

Result<plan::ModelShape> ShapeOf(const jobs::Spec& spec, Json config, std::string_view what) {
  const data::DatasetOptions& data = spec.data.dataset;
  const bool compares = data.objective == data::Objective::kDpo;  // by the head that predicts tokens
  engine::SetHeads(config, {.tokens = data.LearnsTokens() || compares, .rows = data.LearnsRows() && !compares},
                   spec.Classes());
  return MR_TRY(engine::ParseModelConfig(config, what))->Shape();
}

Result<plan::ModelShape> ModelOf(const Context& context, const jobs::Spec& spec) {
  if (!spec.model.from.empty()) {
    Json config = MR_TRY(StoredModelConfig(context, spec.model.from));
    return ShapeOf(spec, std::move(config), spec.model.from + "/config.json");
  }
  Json config = jobs::ModelConfigOf(spec);
  if (config["vocab_size"] == 0) {
    const auto connection = MR_TRY(context.Connect());
    const auto tokenizer =
        tokenizer::OpenTokenizer(*connection, spec.data.tokenizer, context.log(),
                                 {.stop = context.stop, .deadline = Deadline::After(SystemClock(), kPlanPatience)});
    if (!tokenizer) {
      return Fail(tokenizer.error().Context(
          "the size of the vocabulary is the tokenizer's; to plan without it, set model.config.vocab_size"));
    }
    config["vocab_size"] = (*tokenizer)->vocab_size();
  }
  return ShapeOf(spec, std::move(config), "model.config");
}

plan::SearchGoal GoalOf(const jobs::Spec& spec) {
  const jobs::ParallelSpec& parallel = spec.train.parallel;
  return {.memory_weight = parallel.WeightOfMemory(),
          .placement = parallel.options.placement,
          .reduce_in_bf16 = parallel.options.reduce_in_bf16};
}

/// Returns what LoRA's adapters are like: as the job says or, where it names an adapter, as that one is.
Result<engine::LoraOptions> LoraOf(const Context& context, const jobs::LoraSpec& lora) {
  if (lora.adapter.empty()) return lora.options;
  const auto connection = MR_TRY(context.Connect());
  const auto adapter = MR_TRY(checkpoint::ModelSource::Open(*connection, lora.adapter, std::nullopt, context.log()));
  const auto config = MR_TRY(adapter.AdapterConfig());
  if (!config) return Fail(Code::kNotFound, "lora.adapter: {} has no adapter_config.json", lora.adapter);
  engine::LoraOptions options = MR_TRY(engine::ReadPeftConfig(*config, lora.adapter + "/adapter_config.json"));
  options.dropout = lora.options.dropout;
  return options;
}

Result<plan::TrainingSetup> SetupOf(const Context& context, const jobs::Spec& spec) {
  plan::TrainingSetup setup = jobs::TrainingSetupOf(spec);
  setup.model = MR_TRY(ModelOf(context, spec));
  if (spec.lora) {
    const auto quantization = spec.lora->quantization();
    setup.model.Adapt(MR_TRY(LoraOf(context, *spec.lora)), quantization ? BitsPerElement(*quantization) : 0);
  } else {
    setup.model.Freeze(spec.train.freeze);
  }
  return setup;
}

/// What a job will cost.
struct CostEstimate {
  int machines = 0;     ///< spares included
  double per_hour = 0;  ///< of all machines
  double per_1000_steps = 0;
  std::optional<double> hours, whole;  ///< of the whole job; nothing: its length depends on the data
};

CostEstimate EstimateCost(const jobs::Spec& spec, double step_s) {
  CostEstimate estimate{.machines = spec.run.nodes + spec.run.spares};
  estimate.per_hour = spec.cost.price_per_hour * estimate.machines;
  estimate.per_1000_steps = estimate.per_hour * 1000 * step_s / 3600;
  if (spec.train.steps) {
    estimate.hours = static_cast<double>(*spec.train.steps) * step_s / 3600;
    estimate.whole = *estimate.hours * estimate.per_hour;
  }
  return estimate;
}

std::string CostText(const CostEstimate& estimate, const jobs::CostSpec& cost) {
  std::string text = fmt::format(
      "\ncost: {} an hour for {} machine{}, {} for 1,000 steps", jobs::FormatCost(estimate.per_hour, cost.currency),
      estimate.machines, estimate.machines == 1 ? "" : "s", jobs::FormatCost(estimate.per_1000_steps, cost.currency));
  if (!estimate.whole) return text + "; the number of steps depends on the data (`millrace data plan`)\n";
  text += fmt::format(", {} for all steps in {:.1f} h\n", jobs::FormatCost(*estimate.whole, cost.currency),
                      *estimate.hours);
  if (cost.cap && *estimate.whole > *cost.cap) {
    text += fmt::format("  that is more than cost.cap ({}): the job will end before its last step\n",
                        jobs::FormatCost(*cost.cap, cost.currency));
  }
  return text;
}

Json CostJson(const CostEstimate& estimate, const jobs::CostSpec& cost) {
  Json json = {{"machines", estimate.machines},
               {"per_hour", estimate.per_hour},
               {"per_1000_steps", estimate.per_1000_steps},
               {"currency", cost.currency}};
  if (estimate.whole) json.update({{"hours", *estimate.hours}, {"whole", *estimate.whole}});
  if (cost.cap) json["cap"] = *cost.cap;
  return json;
}

}  // namespace

Result<Json> StoredModelConfig(const Context& context, const std::string& url) {
  const auto connection = MR_TRY(context.Connect());
  const auto source = MR_TRY(checkpoint::ModelSource::Open(*connection, url, std::nullopt, context.log()));
  const Json* stored = JsonFind(source.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) return Fail(Code::kNotFound, "{} has no config.json; name the folder of a whole model", url);
  return *stored;
}

Result<int> PlanJob(const Context& context, const jobs::Spec& spec) {
  const plan::Machine machine = MR_TRY(plan::Machine::Find(spec.run.machine));
  const plan::TrainingSetup setup = MR_TRY(SetupOf(context, spec));
  std::optional<plan::SearchResult> found;
  if (spec.train.parallel.automatic) found = MR_TRY(plan::ChooseLayout(setup, machine, GoalOf(spec)));
  const plan::Plan plan = MR_TRY(plan::MakePlan(setup, found ? found->options : spec.train.parallel.options, machine));
  if (context.globals.json) {
    Json json = plan::PlanJson(plan, setup, machine);
    json["name"] = spec.name;
    if (found) json.update({{"layouts_tried", found->tried}, {"layouts_fitting", found->fitting}});
    if (spec.cost.price_per_hour > 0) json["cost"] = CostJson(EstimateCost(spec, plan.time.total()), spec.cost);
    PrintJsonLine(json);
  } else {
    Print("{}: {}", spec.name, plan::PlanText(plan, setup, machine));
    if (found) {
      Print("\nthe best of {} layouts, {} of which fit:\n  parallel: {}\n", found->tried, found->fitting,
            plan::LayoutYaml(plan.layout));
    }
    if (spec.cost.price_per_hour > 0) Print("{}", CostText(EstimateCost(spec, plan.time.total()), spec.cost));
  }
  return plan.fits() ? kExitOk : kExitFailed;
}

Result<MemoryForecast> ForecastMemory(const Context& context, const jobs::Spec& spec) {
  const plan::Machine machine = MR_TRY(plan::Machine::Find(spec.run.machine));
  const plan::TrainingSetup setup = MR_TRY(SetupOf(context, spec));
  engine::ParallelOptions layout = spec.train.parallel.options;
  if (spec.train.parallel.automatic) layout = MR_TRY(plan::ChooseLayout(setup, machine, GoalOf(spec))).options;
  const plan::Plan plan = MR_TRY(plan::MakePlan(setup, layout, machine));
  return MemoryForecast{
      .bytes = static_cast<double>(plan.memory[plan.fullest].total()), .limit = plan.memory_limit, .fits = plan.fits()};
}

Result<LargestBatch> FindLargestBatch(const Context& context, const jobs::Spec& spec, int most) {
  if (spec.train.parallel.automatic) {
    return Fail(Code::kInvalidArgument,
                "the largest micro-batch depends on the layout: set train.parallel to what `millrace job plan` prints");
  }
  const plan::Machine machine = MR_TRY(plan::Machine::Find(spec.run.machine));
  plan::TrainingSetup setup = MR_TRY(SetupOf(context, spec));
  const engine::ParallelOptions& layout = spec.train.parallel.options;
  const engine::MeshShape shape = MR_TRY(engine::ShapeOf(layout, setup.ranks));
  const int data_ranks = shape.replica * shape.shard;
  LargestBatch batch;
  const auto fits = [&](int micro_batch) -> Result<bool> {
    setup.micro_batch = micro_batch;
    const int at_once = micro_batch * data_ranks;
    const int global_batch = at_once * std::max(1, spec.train.global_batch / at_once);
    setup.global_batch = global_batch;
    const plan::Plan plan = MR_TRY(plan::MakePlan(setup, layout, machine));
    if (!plan.fits()) return false;
    batch = {.micro_batch = micro_batch,
             .global_batch = global_batch,
             .bytes = static_cast<double>(plan.memory[plan.fullest].total()),
             .limit = plan.memory_limit};
    return true;
  };
  if (!MR_TRY(fits(1))) {
    return Fail(Code::kResourceExhausted, "not even a micro-batch of one sequence fits the memory of a rank");
  }
  int fitting = 1, beyond = most + 1;
  while (fitting + 1 < beyond) {
    const int middle = fitting + (beyond - fitting) / 2;
    (MR_TRY(fits(middle)) ? fitting : beyond) = middle;
  }
  MR_TRY(fits(fitting));
  return batch;
}

std::vector<std::string_view> PlanMachines() { return plan::MachineNames(); }

Result<int> DescribeMachine(const Context& context) {
  const Json rates = MR_TRY(AskEngine(context, {"machine"}));
  plan::Machine machine = plan::Machine::ThisMachine();
  machine.f32_rate = MR_TRY(JsonNumber(rates, "f32")) / machine.cores;
  machine.bf16_rate = MR_TRY(JsonNumber(rates, "bf16")) / machine.cores;
  machine.memory_bandwidth = MR_TRY(JsonNumber(rates, "memory_bandwidth"));
  machine.link.bandwidth = MR_TRY(JsonNumber(rates, "link_bandwidth"));
  if (context.globals.json) {
    PrintJsonLine({{"event", "machine"},
                   {"cores", machine.cores},
                   {"memory", machine.memory},
                   {"f32", machine.f32_rate},
                   {"bf16", machine.bf16_rate},
                   {"memory_bandwidth", machine.memory_bandwidth},
                   {"link_bandwidth", machine.link.bandwidth}});
  } else {
    WriteOutput(
        machine.ToYaml("f32, bf16, memory_bandwidth and the bandwidth of link were measured; the rest is that of " +
                       std::string(plan::Machine::DescriptionOf(DetectCpu()))));
  }
  return kExitOk;
}

}  // namespace millrace::cli
