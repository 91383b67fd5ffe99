#include "millrace/train/step_end/loss_scale.h"

namespace millrace::train {

void LossScale::Update(bool finite) {
  if (!finite) {
    value_ /= 2;
    good_steps_ = 0;
  } else if (++good_steps_ == kGoodSteps) {
    value_ *= 2;
    good_steps_ = 0;
  }
}

Json LossScale::ToJson() const { return {{"value", value_}, {"good_steps", good_steps_}}; }

Status LossScale::Restore(const Json& json) {
  const auto value = JsonNumber(json, "value");
  const auto good_steps = JsonInt(json, "good_steps");
  if (!value || !good_steps || !(*value > 0) || *good_steps < 0 || *good_steps >= kGoodSteps) {
    return Fail(Code::kCorrupt, "the checkpoint's loss scale is {}", DumpJson(json));
  }
  value_ = *value;
  good_steps_ = static_cast<int>(*good_steps);
  return {};
}

}  // namespace millrace::train
