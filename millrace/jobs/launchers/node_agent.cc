#include "millrace/jobs/launchers/node_agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/process/cpu.h"
#include "millrace/base/text.h"
#include "millrace/jobs/health/node_checks.h"
#include "millrace/jobs/health/spot_watch.h"
#include "millrace/jobs/launchers/line_buffer.h"
#include "millrace/jobs/launchers/local_launcher.h"
#include "millrace/jobs/running_time.h"

namespace millrace::jobs {
namespace {

constexpr Duration kAliveInterval = std::chrono::seconds(2);
constexpr Duration kHealthInterval = std::chrono::seconds(30);
constexpr int kIdlePollMs = 1000;
constexpr std::int64_t kMaxLeaseSeconds = 24 * 60 * 60;
/// How long a supervisor may take to answer an agent that did not run for a whole lease: it may have given it up.
constexpr Duration kAnswerTime = std::chrono::seconds(6);

/// Returns the worst level of a check; nothing if it was not made.
std::optional<Finding::Level> Worst(const Findings& findings, std::string_view check) {
  std::optional<Finding::Level> worst;
  for (const Finding& finding : findings) {
    if (finding.check == check) worst = std::max(worst.value_or(finding.level), finding.level);
  }
  return worst;
}

/// One connection of a supervisor.
class Agent {
 public:
  Agent(int in, int out, std::stop_token stop) : in_(in), out_(out), stop_(std::move(stop)) {
    ::fcntl(out_, F_SETFL, ::fcntl(out_, F_GETFL) | O_NONBLOCK);
  }

  int Run() {
    for (;;) {
      pollfd input{.fd = in_, .events = POLLIN, .revents = 0};
      ::poll(&input, 1, launcher_ ? 0 : kIdlePollMs);
      if (input.revents != 0 && !lines_.Fill(in_)) return broken_ ? 1 : 0;
      const bool was_frozen = NoteTime();
      while (auto line = lines_.Next()) {
        if (!was_frozen) last_order_at_ = now_;
        if (const Status done = Obey(*line); !done) {
          Tell({{"refused", done.error().ToString()}});
        }
      }
      if (stop_.stop_requested()) Leave();
      Watch();
      if (broken_ || HasLeaseEnded()) return 1;
      if (leaving_ && !launcher_) return 0;
    }
  }

 private:
  /// Returns whether this process did not run for a whole lease. What it reads then may have been written long ago.
  bool NoteTime() {
    const Duration before = running_time_.left_out();
    now_ = running_time_.Advance(SystemClock().Now());
    if (running_time_.left_out() - before < lease_) return false;
    last_order_at_ = std::min(last_order_at_, now_ - lease_ + std::min(kAnswerTime, lease_));
    return true;
  }

  bool HasLeaseEnded() const {
    if (!launcher_ || now_ - last_order_at_ < lease_) return false;
    fmt::print(stderr, "millrace: the supervisor said nothing for {}: the ranks are killed\n", FormatDuration(lease_));
    return true;
  }

  Status Obey(const std::string& line) {
    const Json order = MR_TRY(ParseJson(line, "an order of the supervisor"));
    if (order.is_object() && order.empty()) return {};
    if (JsonFind(order, "port") != nullptr) {
      const int port = MR_TRY(FreePort());
      Tell({{"port", port}});
    } else if (const Json* health = JsonFind(order, "health")) {
      MR_TRY(CheckHealth(*health));
    } else if (const Json* start = JsonFind(order, "start")) {
      MR_TRY(Start(*start));
    } else if (JsonFind(order, "signal") != nullptr) {
      Signal(static_cast<int>(MR_TRY(JsonInt(order, "signal"))));
    } else if (JsonFind(order, "leave") != nullptr) {
      Leave();
    } else {
      return Fail(Code::kInvalidArgument,
                  "this version of Millrace does not know the order {}; install the same version on all machines",
                  line.substr(0, 100));
    }
    return {};
  }

  void Leave() {
    if (!std::exchange(leaving_, true)) Signal(SIGTERM);
  }

  /// A second SIGTERM would end a rank at once, although both its machine and its supervisor may want it to save.
  void Signal(int number) {
    if (!launcher_ || (number == SIGTERM && std::exchange(terminated_, true))) return;
    launcher_->Signal(number);
  }

  Status CheckHealth(const Json& options) {
    health_ = MR_TRY(HealthOptions::FromJson(options));
    health_found_ = CheckNode(*health_, {}, SystemClock(), {});
    health_->passive = true;
    if (!health_->spot.empty() && !spot_) spot_.emplace(health_->spot);
    if (!AddNotice()) TellHealth();
    return {};
  }

  /// Returns whether a notice of EC2 is new, which is then told.
  bool AddNotice() {
    const std::optional<Finding> notice = spot_ ? spot_->TerminationNotice() : std::nullopt;
    if (!notice || std::ranges::find(health_found_, *notice) != health_found_.end()) return false;
    health_found_.push_back(*notice);
    TellHealth();
    return true;
  }

  void TellHealth() {
    Json findings = Json::array();
    for (const Finding& finding : health_found_) findings.push_back(ToJson(finding));
    Tell({{"health", std::move(findings)}});
  }

  /// Looks at the machine again, without taking time from its ranks. What only a full check finds stays as it was.
  void WatchHealth(TimePoint now) {
    AddNotice();
    if (!health_ || now < health_at_) return;
    health_at_ = now + kHealthInterval;
    bool changed = false;
    const Findings now_found = CheckNode(*health_, {}, SystemClock(), {});
    for (std::string_view check : kHealthChecks) {
      const auto before = Worst(health_found_, check), after = Worst(now_found, check);
      if (!before || !after || before == after) continue;
      std::erase_if(health_found_, [&](const Finding& finding) { return finding.check == check; });
      std::ranges::copy_if(now_found, std::back_inserter(health_found_),
                           [&](const Finding& finding) { return finding.check == check; });
      changed = true;
    }
    if (changed) TellHealth();
  }

  Status Start(const Json& start) {
    launcher_.reset();
    folder_.reset();
    LocalLauncher::Options options;
    options.ranks = static_cast<int>(MR_TRY(JsonInt(start, "ranks")));
    options.place.first_rank = static_cast<int>(MR_TRY(JsonInt(start, "first_rank")));
    options.place.world_size = static_cast<int>(MR_TRY(JsonInt(start, "world_size")));
    options.place.master_address = MR_TRY(JsonString(start, "master_address"));
    options.place.master_port = static_cast<int>(MR_TRY(JsonInt(start, "master_port")));
    options.place.rank_secret = MR_TRY(JsonString(start, "rank_secret"));
    if (JsonFind(start, "local_world_size") != nullptr) {
      options.place.first_local_rank = static_cast<int>(MR_TRY(JsonInt(start, "first_local_rank")));
      options.place.local_world_size = static_cast<int>(MR_TRY(JsonInt(start, "local_world_size")));
    }
    options.threads = static_cast<int>(MR_TRY(JsonInt(start, "threads")));
    if (JsonFind(start, "lease_s") != nullptr) {
      lease_ = std::chrono::seconds(std::clamp<std::int64_t>(MR_TRY(JsonInt(start, "lease_s")), 1, kMaxLeaseSeconds));
    }
    const int attempt = static_cast<int>(MR_TRY(JsonInt(start, "attempt")));
    if (const Json* env = JsonFind(start, "env")) {
      if (!env->is_object()) return Fail(Code::kInvalidArgument, "the environment in an order must be an object");
      for (const auto& [name, value] : env->items()) options.env[name] = MR_TRY(JsonString(*env, name));
    }
    options.env.merge(MissingComputeEnvironment(DetectCpu()));

    folder_ = MR_TRY(TempDir::Create());  // for this user only: job files name buckets
    const std::filesystem::path job_file = folder_->path() / "job.yaml";
    MR_TRY(WriteFileAtomic(job_file, AsBytes(MR_TRY(JsonString(start, "job")))));
    for (const char* name : {"logs", "heartbeats"}) {
      std::error_code error;
      if (!std::filesystem::create_directory(folder_->path() / name, error)) {
        return Fail(Code::kIo, "cannot make a folder in {}: {}", folder_->path().string(), error.message());
      }
    }
    options.folder = folder_->path();
    if (const Json* foreign = JsonFind(start, "foreign")) {
      options.foreign = MR_TRY(ForeignProgram::FromJson(*foreign));
    } else {
      std::string program = MR_TRY(JsonString(start, "program"));
      if (program.empty()) program = (MR_TRY(ProgramDirectory()) / "millrace-train").string();
      options.command = {program, job_file.string()};
    }
    options.all_lines = true;
    options.on_line = [this](int rank, LocalLauncher::Stream stream, std::string_view text) {
      Tell({{"line", {{"rank", rank}, {"error", stream == LocalLauncher::Stream::kError}, {"text", text}}}});
    };
    first_rank_ = options.place.first_rank;
    auto launcher = std::make_unique<LocalLauncher>(std::move(options));
    MR_TRY(launcher->Start(attempt));
    launcher_ = std::move(launcher);
    terminated_ = false;
    health_at_ = SystemClock().Now() + kHealthInterval;
    emitted_.clear();
    Json pids = Json::array();
    for (const RankState& rank : launcher_->Wait(SystemClock().Now(), {})) {
      pids.push_back(rank.pid);
      emitted_.emplace_back();
    }
    Tell({{"started", std::move(pids)}});
    return {};
  }

  /// Tells what has changed. While ranks run, waits for that for as long as a launcher looks.
  void Watch() {
    const TimePoint now = SystemClock().Now();
    if (now >= alive_at_) {
      Tell(Json::object());
      alive_at_ = now + kAliveInterval;
    }
    if (!launcher_) return;
    WatchHealth(now);
    const std::span<const RankState> ranks = launcher_->Wait(alive_at_, {});
    bool running = false;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const RankState& rank = ranks[i];
      const int number = first_rank_ + static_cast<int>(i);
      if (rank.beats != emitted_[i].beats || rank.step != emitted_[i].step ||
          rank.report_lines != emitted_[i].report_lines) {
        Json beat = {{"rank", number}, {"beats", rank.beats}};
        if (rank.step) beat["step"] = *rank.step;
        if (rank.report_lines != emitted_[i].report_lines) beat["told"] = rank.report_lines;
        Tell({{"beat", std::move(beat)}});
      }
      if (rank.exit && !emitted_[i].exit) {
        Tell({{"exit", {{"rank", number}, {"code", rank.exit->exit_code}, {"signal", rank.exit->signal}}}});
      }
      emitted_[i] = rank;
      running = running || !rank.exit;
    }
    if (!running) launcher_.reset();
  }

  /// A supervisor that reads nothing for the lease is as good as gone.
  void Tell(const Json& event) {
    const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(lease_).count();
    broken_ = broken_ || !WriteLine(out_, DumpJson(event), static_cast<int>(patience));
  }

  const int in_, out_;
  const std::stop_token stop_;
  LineBuffer lines_;
  std::optional<TempDir> folder_;  ///< of the attempt
  std::unique_ptr<LocalLauncher> launcher_;
  std::vector<RankState> emitted_;
  int first_rank_ = 0;
  TimePoint alive_at_, health_at_;
  RunningTime running_time_{2 * kAliveInterval};
  Duration lease_{std::chrono::seconds(kMaxLeaseSeconds)};
  TimePoint now_, last_order_at_;        ///< running time
  std::optional<HealthOptions> health_;  ///< for looks while ranks run
  std::optional<SpotWatch> spot_;
  Findings health_found_;  ///< what was told last
  bool broken_ = false;    ///< nobody reads the events
  bool leaving_ = false, terminated_ = false;
};

}  // namespace

int RunNodeAgent(int in, int out, std::stop_token stop) {
  ::signal(SIGPIPE, SIG_IGN);
  return Agent(in, out, std::move(stop)).Run();
}

}  // namespace millrace::jobs
