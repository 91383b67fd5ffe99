#include "millrace/transfer/plan/batch.h"

#include <algorithm>
#include <utility>

namespace millrace::transfer {

Batch::Batch(int workers, std::stop_token stop, std::function<void(const Outcome&)> report)
    : stop_(std::move(stop)),
      report_(std::move(report)),
      workers_(std::max(1, workers)),
      queue_(static_cast<std::size_t>(workers_) * 4) {}  // a few jobs per worker, so that none waits for the next Add

Batch::~Batch() { Finish(); }

void Batch::Add(std::string source, std::string destination, std::uint64_t size, Job job) {
  if (stop_.stop_requested()) return;
  counters_.items_known += 1;
  counters_.bytes_known += size;
  Submit(
      [this, source = std::move(source), destination = std::move(destination), size, job = std::move(job)]() mutable {
        Result<bool> needed =
            stop_.stop_requested() ? Result<bool>(Fail(Code::kCancelled, "not started")) : job({.stop = stop_});
        Status status = needed ? Status() : Status(std::unexpected(needed.error()));
        Report({source, destination, size, status, needed.value_or(true)});
      });
}

void Batch::AddMany(std::vector<std::string> names, bool as_destination, GroupJob job) {
  if (stop_.stop_requested()) return;
  counters_.items_known += names.size();
  Submit([this, as_destination, names = std::move(names), job = std::move(job)]() mutable {
    std::vector<Status> outcomes =
        stop_.stop_requested() ? std::vector<Status>(names.size(), Status(Fail(Code::kCancelled, "not started")))
                               : job({.stop = stop_});
    const std::string none;
    for (std::size_t i = 0; i < names.size(); ++i) {
      Report({as_destination ? none : names[i], as_destination ? names[i] : none, 0, outcomes[i]});
    }
  });
}

void Batch::AddFailure(std::string source, std::string destination, Error error) {
  counters_.items_known += 1;
  Report({source, destination, 0, std::unexpected(std::move(error))});
}

void Batch::Finish() {
  counters_.all_known = true;
  queue_.Close();
  if (started_ < workers_) RunQueued();
  threads_.Join();
}

/// Starts a thread if more jobs wait than the threads and the owner, who works in Finish(), can take at once.
void Batch::Submit(Work work) {
  std::uint64_t outstanding = ++submitted_ - ended_;
  if (started_ < workers_ && outstanding > static_cast<std::uint64_t>(started_) + 1) {
    ++started_;
    threads_.Spawn("transfer", [this](std::stop_token) { RunQueued(); });
  }
  queue_.Push(std::move(work));
}

void Batch::Run(Work& work) {
  work();
  MutexLock lock(ended_mutex_);
  ++ended_;
  one_ended_.NotifyOne();
}

void Batch::RunQueued() {
  while (auto work = queue_.Pop()) Run(*work);
}

void Batch::Wait() {
  while (auto work = queue_.TryPop()) Run(*work);
  MutexLock lock(ended_mutex_);
  while (ended_ < submitted_) one_ended_.Wait(ended_mutex_);
}

void Batch::Report(const Outcome& outcome) {
  MutexLock lock(report_mutex_);
  counters_.items_done += 1;
  if (!outcome.status) counters_.items_failed += 1;
  report_(outcome);
}

}  // namespace millrace::transfer
