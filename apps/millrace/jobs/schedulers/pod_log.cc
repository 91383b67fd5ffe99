#include "apps/millrace/jobs/schedulers/pod_log.h"

#include <string_view>

#include "apps/common/output.h"
#include "millrace/base/text.h"
#include "millrace/jobs/kubernetes/cluster_job.h"

namespace millrace::cli {

void SupervisorOutput::Write(const std::string& line) {
  cli::Print("{}\n", line);
  FlushOutput();
}

void SupervisorOutput::Print(const jobs::JobEvent& event) {
  for (const std::string_view line : Split(event.sentence, '\n')) Write(fmt::format("[supervisor] {}", line));
}

void SupervisorOutput::Print(const jobs::JobStatus& status) {
  constexpr Duration kInterval = std::chrono::seconds(2);
  const TimePoint now = SystemClock().Now();
  if (status.state == state_ && status.message == message_ && now < next_) return;
  state_ = status.state;
  message_ = status.message;
  next_ = now + kInterval;
  Write(jobs::StatusLine(status));
}

}  // namespace millrace::cli
