// checkpoint_scale: what a save of a 70-billion-parameter Llama costs on 8, 1,024 and 16,384 ranks, simulated. One JSON
// object a line; docs/scale.md has the table.
#include "benchmarks/checkpoint_scale/save_simulation.h"
#include "millrace/base/clock.h"
#include "millrace/base/json.h"

int main() {
  using namespace millrace;
  using namespace millrace::checkpoint;
  for (const ScaleLayout& layout : {ScaleLayout{1, 8, 1}, ScaleLayout{16, 8, 8}, ScaleLayout{256, 8, 8}}) {
    const TimePoint started = SystemClock().Now();
    const auto save = SimulateSave({}, layout);
    if (!save) {
      fmt::print(stderr, "checkpoint_scale: {}\n", save.error().ToString());
      return 1;
    }
    fmt::print("{}\n",
               DumpJson({{"ranks", save->ranks},
                         {"data", layout.data},
                         {"tensor", layout.tensor},
                         {"pipeline", layout.pipeline},
                         {"bytes", save->bytes},
                         {"least", save->least},
                         {"most", save->most},
                         {"tensors", save->tensors},
                         {"slices", save->slices},
                         {"requests", save->requests},
                         {"first_reports", save->first_reports},
                         {"later_reports", save->later_reports},
                         {"manifest", save->manifest},
                         {"copy_s", save->copy_s},
                         {"upload_s", save->upload_s},
                         {"agree_s", save->agree_s},
                         {"commit_s", save->commit_s},
                         {"total_s", save->total_s()},
                         {"simulated_in_s", std::chrono::duration<double>(SystemClock().Now() - started).count()}}));
  }
  return 0;
}
