#include "millrace/train/step_sums.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace millrace::train {

Result<StepSums> SumOverRanks(engine::Collective& group, const StepSums& mine, bool compares) {
  const PassSums& passes = mine.passes;
  std::vector<double> numbers = {passes.loss,
                                 static_cast<double>(passes.labels.tokens),
                                 static_cast<double>(passes.labels.rows),
                                 passes.context,
                                 mine.stop ? 1.0 : 0.0,
                                 mine.busy.store ? 1.0 : 0.0,
                                 mine.busy.local ? 1.0 : 0.0,
                                 mine.lost ? 1.0 : 0.0};
  const std::size_t preferences = numbers.size();
  if (compares) std::ranges::copy(passes.preferences.of, std::back_inserter(numbers));
  const at::Tensor sums = at::tensor(numbers, at::kDouble);
  MR_TRY(group.AllReduce(sums));
  const std::span<const double> all(sums.data_ptr<double>(), numbers.size());
  StepSums total{.passes = {.loss = all[0],
                            .labels = {static_cast<std::uint64_t>(all[1]), static_cast<std::uint64_t>(all[2])},
                            .context = all[3],
                            .preferences = {}},
                 .stop = all[4] > 0,
                 .busy = {.store = all[5] > 0, .local = all[6] > 0},
                 .lost = all[7] > 0};
  if (compares) total.passes.preferences.Add(all.subspan(preferences));
  return total;
}

}  // namespace millrace::train
