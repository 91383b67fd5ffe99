#include "millrace/train/step_end/step_guard.h"

#include <cmath>

namespace millrace::train {
namespace {

constexpr int kMaxFailures = 8;  // of steps in a row, or of returns to one checkpoint

}  // namespace

StepGuard::StepGuard(const SpikeOptions& spikes, std::optional<double> first_loss_scale)
    : options_(spikes), spikes_(spikes) {
  if (first_loss_scale) loss_scale_.emplace(*first_loss_scale);
}

std::optional<double> StepGuard::loss_scale() const {
  return loss_scale_ ? std::optional(loss_scale_->value()) : std::nullopt;
}

Result<StepGuard::Verdict> StepGuard::CheckStep(StepReport& report) {
  const bool finite_norm = std::isfinite(report.grad_norm);
  if (loss_scale_ && std::isfinite(report.loss)) {
    loss_scale_->Update(finite_norm);
    report.overflow = !finite_norm;
    if (report.overflow) return Verdict::kLeaveOut;
  }
  const bool finite = std::isfinite(report.loss) && finite_norm;
  not_finite_ = finite ? 0 : not_finite_ + 1;
  report.spike = looks_for_spikes() && (!finite || spikes_.IsSpike(report.loss, report.grad_norm));
  if (!finite && !report.spike) {
    return Fail(Code::kInternal,
                "step {}: the loss is {} and the gradient norm {}; nothing of this step was kept. Try a lower learning "
                "rate, more warm-up steps or a smaller clip_norm",
                report.step, report.loss, report.grad_norm);
  }
  return report.spike ? Verdict::kSpike : Verdict::kLearn;
}

Status StepGuard::CheckLossScale(std::uint64_t step) const {
  if (!loss_scale_->is_hopeless()) return {};
  return Fail(Code::kInternal,
              "step {}: the gradient is not finite at any loss scale; go on from an earlier checkpoint, with a lower "
              "learning rate or train.precision: bf16",
              step);
}

Status StepGuard::NoteLeftOut(std::uint64_t step) const {
  if (not_finite_ <= kMaxFailures) return {};
  return Fail(Code::kInternal,
              "the loss or the gradient was not finite in {} steps in a row, up to step {}, and the weights are beyond "
              "use; go on from an earlier checkpoint with a lower lr",
              not_finite_, step);
}

Status StepGuard::NoteWentBack(std::uint64_t step) {
  if (++went_back_[step] <= kMaxFailures) return {};
  return Fail(Code::kInternal,
              "the loss jumped after each of {} attempts to go on from the checkpoint of step {}. Try a lower "
              "learning rate, or train.spikes.sigma above {}",
              kMaxFailures, step, options_.sigma);
}

void StepGuard::Save(RunState& state) const {
  if (looks_for_spikes()) state.spikes = spikes_.ToJson();
  if (loss_scale_) state.loss_scale = loss_scale_->ToJson();
}

Status StepGuard::Restore(const RunState& state) {
  if (looks_for_spikes() && !state.spikes.is_null()) MR_TRY(spikes_.Restore(state.spikes));
  if (loss_scale_ && !state.loss_scale.is_null()) MR_TRY(loss_scale_->Restore(state.loss_scale));
  return {};
}

}  // namespace millrace::train
