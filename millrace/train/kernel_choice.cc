#include "millrace/train/kernel_choice.h"

#include <string_view>
#include <utility>

#include "millrace/data/options/dataset_options.h"
#include "millrace/train/checks.h"
#include "millrace/train/compile/product_json.h"

namespace millrace::train {
namespace {

Json MadeFor(const ComputedRun& run) {
  const Options& options = run.options;
  return CompiledFor(
      {.model = run.model.model->config().ToJson(),
       .precision = engine::PrecisionName(PrecisionOf(options)),
       .objective = data::ObjectiveName(options.data.objective),
       .micro_batch = options.micro_batch,
       .sequence_length = options.data.sequence_length,
       .parallel = run.layout.options(),
       .shape = run.layout.mesh().shape(),
       .adapter = AdapterConfig(run.opened, options),
       .base = options.base_quantization ? QuantizationName(*options.base_quantization) : std::string_view(),
       .device = options.device,
       .fp8_scaling = engine::ops::Fp8ScalingName(options.fp8)});
}

}  // namespace

Result<KernelChoice> ChooseKernels(const ComputedRun& run, const EarlierKernels& before, const TryStep& try_step,
                                   Heartbeat& heartbeat, RunObserver& observer) {
  const Options& options = run.options;
  const bool leads = run.group.rank() == 0;
  KernelChoice choice;
  choice.kernels.plain = options.compile == Compile::kOff;
  choice.kernels.fp8 = options.fp8;
  if (run.model.scales) choice.kernels.largest = &run.model.scales->values();
  MR_TRY(CheckPlain(run.layout, options));
  if (options.compile == Compile::kOn) {
    const HeartbeatScope beating(heartbeat, std::nullopt, *options.clock);
    CompileReport report = MR_TRY(CompileStep(
        run.connection, run.group, options.compile_cache, MadeFor(run), before.compiled,
        [&](engine::ops::StepKernels kernels, engine::ops::SeenProducts& seen) {
          kernels.fp8 = choice.kernels.fp8;
          kernels.largest = choice.kernels.largest;
          return try_step(kernels, seen);
        },
        options.device, *options.clock, options.log));
    choice.compiled = report.entry;
    MR_TRY(TakeChoices(choice.compiled->products, choice.kernels));
    if (options.compile_only) {
      engine::ops::SeenProducts seen;
      MR_TRY(try_step(choice.kernels, seen));
      report.peak_memory = MR_TRY(PeakMemory(run.group, options.device));
    }
    if (leads) observer.OnCompiled(report);
  }
  const std::string_view mode = CompileName(options.compile);
  if (leads && before.steps > 0 && (mode != before.compile || choice.compiled != before.compiled)) {
    const std::string changed =
        choice.compiled && before.compiled ? ChangedKeys(*before.compiled, *choice.compiled) : "train.compile";
    options.log.Warning("the checkpoint's run computed its steps in another way: losses may differ in their last bits",
                        {{"train.compile", mode}, {"before", before.compile}, {"changed", changed}});
  }
  return choice;
}

}  // namespace millrace::train
