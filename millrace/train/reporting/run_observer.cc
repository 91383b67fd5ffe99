#include "millrace/train/reporting/run_observer.h"

#include <exception>
#include <utility>

#include "millrace/train/reporting/stopwatch.h"

namespace millrace::train {

Json RunRestart::ToJson() const {
  return {{"event", "restart"},
          {"cause", cause == Cause::kResumed ? "resumed" : "went_back"},
          {"step", step},
          {"attempt", attempt}};
}

Json RunEnd::ToJson() const {
  if (!error) return outcome.ToJson();
  return {{"event", "done"}, {"step", outcome.step}, {"ending", "failed"}, {"error", error->ToString()}};
}

Json CheckpointJson(const Result<checkpoint::SaveStats>& saved) {
  if (!saved) return {{"event", "checkpoint_failed"}, {"error", saved.error().ToString()}};
  return {{"event", "checkpoint"},
          {"step", saved->step},
          {"tier", saved->tier == checkpoint::CheckpointTier::kLocal ? "local" : "store"},
          {"bytes", saved->bytes},
          {"seconds", SecondsOf(saved->total)},
          {"blocked_s", SecondsOf(saved->blocked)}};
}

ObserverList::~ObserverList() {
  while (!observers_.empty()) observers_.pop_back();
}

void ObserverList::Add(RunObserver& observer) { observers_.push_back(std::make_unique<Listed>(&observer)); }

void ObserverList::Add(std::unique_ptr<RunObserver> observer) {
  RunObserver* const borrowed = observer.get();
  observers_.push_back(std::make_unique<Listed>(borrowed, std::move(observer)));
}

void ObserverList::Tell(const std::function<void(RunObserver&)>& event) {
  for (const std::unique_ptr<Listed>& listed : observers_) Tell(*listed, event);
}

void ObserverList::Tell(Listed& listed, const std::function<void(RunObserver&)>& event) {
  if (listed.failed) return;
  std::string why;
  try {
    return event(*listed.observer);
  } catch (const std::exception& thrown) {
    why = thrown.what();
  } catch (...) {
    why = "it threw something";
  }
  if (listed.failed.exchange(true)) return;
  log_.Warning("an observer of the run failed; the run goes on without it",
               {{"observer", listed.observer->observer_name()}, {"error", why}});
}

void ObserverList::OnCompiled(const CompileReport& report) {
  Tell([&](RunObserver& observer) { observer.OnCompiled(report); });
}

void ObserverList::OnPlan(const Plan& plan) {
  Tell([&](RunObserver& observer) { observer.OnPlan(plan); });
}

void ObserverList::OnRestart(const RunRestart& restart) {
  Tell([&](RunObserver& observer) { observer.OnRestart(restart); });
}

void ObserverList::OnStepBegin(std::uint64_t step) {
  Tell([&](RunObserver& observer) { observer.OnStepBegin(step); });
}

void ObserverList::OnStep(const StepReport& report) {
  Tell([&](RunObserver& observer) { observer.OnStep(report); });
}

void ObserverList::OnFigures(const StepReport& means) {
  Tell([&](RunObserver& observer) { observer.OnFigures(means); });
}

void ObserverList::OnEvaluation(const EvalReport& report) {
  Tell([&](RunObserver& observer) { observer.OnEvaluation(report); });
}

void ObserverList::OnHistograms(std::uint64_t step, const Histograms& histograms) {
  Tell([&](RunObserver& observer) { observer.OnHistograms(step, histograms); });
}

void ObserverList::OnRanks(std::span<const history::RankFigures> ranks) {
  Tell([&](RunObserver& observer) { observer.OnRanks(ranks); });
}

void ObserverList::OnCheckpoint(const Result<checkpoint::SaveStats>& saved) {
  Tell([&](RunObserver& observer) { observer.OnCheckpoint(saved); });
}

void ObserverList::OnStepEnd(std::uint64_t step, bool last) {
  Tell([&](RunObserver& observer) { observer.OnStepEnd(step, last); });
}

void ObserverList::OnEnd(const RunEnd& end) {
  for (auto listed = observers_.rbegin(); listed != observers_.rend(); ++listed) {
    Tell(**listed, [&](RunObserver& observer) { observer.OnEnd(end); });
  }
}

}  // namespace millrace::train
