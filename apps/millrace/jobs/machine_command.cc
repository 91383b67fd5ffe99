#include "apps/millrace/jobs/machine_command.h"

#include "apps/millrace/cli/engine_program.h"
#include "millrace/plan/machine/machine.h"

namespace millrace::cli {

Result<int> DescribeMachine(const Context& context) {
  const Json rates = MR_TRY(AskEngine(context, {"machine"}));
  plan::Machine machine = plan::Machine::ThisMachine();
  machine.f32_rate = MR_TRY(JsonNumber(rates, "f32")) / machine.cores;
  machine.bf16_rate = MR_TRY(JsonNumber(rates, "bf16")) / machine.cores;
  machine.memory_bandwidth = MR_TRY(JsonNumber(rates, "memory_bandwidth"));
  if (context.globals.json) {
    PrintJsonLine({{"event", "machine"},
                   {"cores", machine.cores},
                   {"memory", machine.memory},
                   {"f32", machine.f32_rate},
                   {"bf16", machine.bf16_rate},
                   {"memory_bandwidth", machine.memory_bandwidth}});
  } else {
    WriteOutput(machine.ToYaml("f32, bf16 and memory_bandwidth were measured; the rest is that of " +
                               std::string(plan::Machine::DescriptionOf(DetectCpu()))));
  }
  return kExitOk;
}

}  // namespace millrace::cli
