#include "millrace/train/step_end/spikes.h"

#include <cmath>
#include <string_view>

namespace millrace::train {
namespace {

bool LiesFarAbove(double value, const std::deque<double>& before, double sigma) {
  double sum = 0, squares = 0;
  for (const double each : before) sum += each;
  const double mean = sum / static_cast<double>(before.size());
  for (const double each : before) squares += (each - mean) * (each - mean);
  return value > mean + sigma * std::sqrt(squares / static_cast<double>(before.size()));
}

Status RestoreValues(const Json& json, std::string_view key, std::size_t most, std::deque<double>& values) {
  const Json* found = JsonFind(json, key);
  if (found == nullptr || !found->is_array()) return Fail(Code::kCorrupt, "the state of spikes has no {}", key);
  values.clear();
  for (const Json& value : *found) {
    if (!value.is_number()) return Fail(Code::kCorrupt, "the state of spikes: {} is not a list of numbers", key);
    values.push_back(value.get<double>());
    if (values.size() > most) values.pop_front();
  }
  return {};
}

}  // namespace

bool SpikeDetector::IsSpike(double loss, double grad_norm) {
  if (options_.action == SpikeOptions::Action::kNone) return false;
  if (2 * losses_.size() >= options_.window && losses_.size() > 1 &&
      (LiesFarAbove(loss, losses_, options_.sigma) || LiesFarAbove(grad_norm, norms_, options_.sigma))) {
    return true;
  }
  losses_.push_back(loss);
  norms_.push_back(grad_norm);
  if (losses_.size() <= options_.window) return false;
  losses_.pop_front();
  norms_.pop_front();
  return false;
}

Json SpikeDetector::ToJson() const { return {{"losses", losses_}, {"grad_norms", norms_}}; }

Status SpikeDetector::Restore(const Json& json) {
  MR_TRY(RestoreValues(json, "losses", options_.window, losses_));
  return RestoreValues(json, "grad_norms", options_.window, norms_);
}

}  // namespace millrace::train
