#include "apps/millrace-train/machine_command.h"

#include <algorithm>

#include "apps/common/output.h"
#include "millrace/base/json.h"
#include "millrace/base/process/cores.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/runtime.h"
#include "millrace/engine/tuning/measure_machine.h"

namespace millrace {

CLI::App* AddMachineCommand(CLI::App& app) {
  return app.add_subcommand("machine", "Measure how fast this machine computes");
}

int PrintMachine() {
  engine::ConfigureRuntime(ComputeThreads());
  const auto rates = engine::CatchTorch("measuring this machine", [] { return engine::MeasureMachine(SystemClock()); });
  if (!rates) {
    cli::Print("{}\n", DumpJson(Json{{"error", rates.error().ToString()}}));
    return ToExitStatus(rates.error().code());
  }
  cli::Print("{}\n", DumpJson(Json{{"f32", rates->f32},
                                   {"bf16", rates->bf16},
                                   {"memory_bandwidth", rates->memory_bandwidth},
                                   {"link_bandwidth", rates->link_bandwidth}}));
  return 0;
}

}  // namespace millrace
