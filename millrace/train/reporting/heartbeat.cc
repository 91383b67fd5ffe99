#include "millrace/train/reporting/heartbeat.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <chrono>

namespace millrace::train {

Result<Heartbeat> Heartbeat::Open(const std::filesystem::path& path) {
  Heartbeat heartbeat;
  if (!path.empty()) heartbeat.file_ = MR_TRY(OpenFile(path, O_WRONLY | O_CREAT));
  return heartbeat;
}

Status Heartbeat::AddLine(const std::string& line) {
  told_ += line + "\n";
  return Beat(std::nullopt);
}

Status Heartbeat::Beat(std::optional<std::uint64_t> step) {
  if (!file_) return {};
  const std::string text = (step ? fmt::format("{}\n", *step) : "\n") + told_;
  return WriteFully(file_.get(), AsBytes(text), 0, "the heartbeat file");
}

void Heartbeat::BeatInStep(std::uint64_t step, Clock& clock) {
  const TimePoint now = clock.Now();
  if (!file_ || now - last_in_step_ < std::chrono::seconds(1)) return;
  last_in_step_ = now;
  (void)Beat(step);  // if it fails, the next step tells
}

HeartbeatScope::HeartbeatScope(Heartbeat& heartbeat, std::optional<std::uint64_t> step, Clock& clock) {
  beating_.Spawn("heartbeat", [&heartbeat, step, &clock](std::stop_token stop) {
    while (clock.SleepFor(std::chrono::seconds(5), stop)) {
      if (!heartbeat.Beat(step)) return;  // the next step tells
    }
  });
}

}  // namespace millrace::train
