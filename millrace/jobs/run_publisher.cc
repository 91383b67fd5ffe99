#include "millrace/jobs/run_publisher.h"

#include <utility>

namespace millrace::jobs {
namespace {

/// For the last round of writes to a bucket that was away: the job is over, and somebody waits for its end.
constexpr Duration kLastPatience = std::chrono::seconds(5);

}  // namespace

RunPublisher::RunPublisher(object::Location folder, Options options)
    : options_(std::move(options)), writer_(std::move(folder), options_.folder), status_(options_.status) {
  thread_.Spawn("run-publisher", [this](std::stop_token stop) { Run(std::move(stop)); });
}

RunPublisher::~RunPublisher() {
  thread_.RequestStop();
  thread_.Join();
}

void RunPublisher::NoteEvent(Json event) {
  const MutexLock lock(mutex_);
  // A bucket that stays away must not fill the memory: a job that fails all the time has an event a second.
  constexpr std::size_t kMaxEvents = 10'000;
  if (events_.size() < kMaxEvents) events_.push_back(std::move(event));
}

void RunPublisher::NoteStatus(Json status) {
  const MutexLock lock(mutex_);
  status_ = std::move(status);
}

void RunPublisher::Run(std::stop_token stop) {
  for (bool goes_on = !stop.stop_requested();;) {
    const Duration patience = goes_on || !warned_ ? options_.patience : kLastPatience;
    if (const Status written = WriteOnce(patience); !written && !std::exchange(warned_, true) && options_.on_failure) {
      options_.on_failure(written.error());
    }
    if (!goes_on) return;
    goes_on = options_.clock->SleepUntil(options_.clock->Now() + options_.interval, stop);
  }
}

Status RunPublisher::WriteOnce(Duration patience) {
  std::vector<Json> events;
  Json status;
  {
    const MutexLock lock(mutex_);
    events.swap(events_);
    status = status_;
  }
  // The writer keeps events that it cannot write.
  return writer_.Write(events, status, {.deadline = Deadline::After(SystemClock(), patience)});
}

}  // namespace millrace::jobs
