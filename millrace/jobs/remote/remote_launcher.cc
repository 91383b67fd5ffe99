#include "millrace/jobs/remote/remote_launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "millrace/base/json.h"
#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

/// How long a killed rank may take to be gone before its node counts as lost.
constexpr Duration kLeaveTime = std::chrono::seconds(5);

}  // namespace

RemoteLauncher::RemoteLauncher(Options options)
    : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  agents_.resize(options_.nodes.size());
  losses_.resize(options_.nodes.size());
}

RemoteLauncher::~RemoteLauncher() {
  // Agents kill their ranks when their input ends.
  for (auto& agent : agents_) {
    if (agent) agent->process.CloseStdin();
  }
  for (auto& agent : agents_) {
    if (agent) agent->process.Wait(kLeaveTime);
  }
}

Status RemoteLauncher::OpenLogs() {
  const auto log = [&](int rank, const char* suffix) {
    return OpenFile(options_.folder / "logs" / fmt::format("rank-{}.{}", rank, suffix),
                    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC);
  };
  while (static_cast<int>(logs_.size()) < ranks()) {
    const int rank = static_cast<int>(logs_.size());
    UniqueFd out = MR_TRY(log(rank, "out"));
    UniqueFd error = MR_TRY(log(rank, "err"));
    logs_.push_back({.out = std::move(out), .error = std::move(error)});
  }
  for (Log& each : logs_) {
    struct stat info{};
    each.error_start = ::fstat(each.error.get(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
  }
  return {};
}

Status RemoteLauncher::Connect(std::size_t node) {
  if (agents_[node] && !agents_[node]->process.Poll()) return {};
  losses_[node].clear();
  auto process = Subprocess::Start(
      {.argv = options_.nodes[node].command, .capture_stdout = true, .null_stdin = false, .pipe_stdin = true});
  if (!process) return Fail(process.error().Context("node " + options_.nodes[node].name));
  agents_[node] = Agent{.process = *std::move(process), .heard = SystemClock().Now()};
  return {};
}

/// Listens until the first `nodes` agents have answered.
/// Errors: kUnavailable if one is lost or the time is over; what an agent refuses.
Status RemoteLauncher::Await(TimePoint until, const std::function<bool(const Agent&)>& answered, std::size_t nodes) {
  for (;;) {
    bool all = true;
    for (std::size_t node = 0; node < nodes; ++node) {
      const std::string& name = options_.nodes[node].name;
      if (!agents_[node]) return Fail(Code::kUnavailable, "node {} {}", name, losses_[node]);
      if (agents_[node]->refusal) return Fail(*agents_[node]->refusal);
      if (answered(*agents_[node])) continue;
      all = false;
      if (SystemClock().Now() >= until) return Fail(Code::kUnavailable, "node {} does not answer", name);
    }
    if (all) return {};
    Listen(until);
  }
}

Status RemoteLauncher::Start(int attempt) {
  const TimePoint until = SystemClock().Now() + options_.start_timeout;
  MR_TRY(OpenLogs());
  states_.clear();
  const auto start = [&]() -> Status {
    for (std::size_t node = 0; node < agents_.size(); ++node) MR_TRY(Connect(node));
    for (auto& agent : agents_) {
      agent->port.reset();
      agent->refusal.reset();
      agent->started = false;
    }
    WriteLine(agents_[0]->process.stdin_fd(), R"({"port": true})");
    MR_TRY(Await(until, [](const Agent& agent) { return agent.port.has_value(); }, 1));
    const int port = *agents_[0]->port;
    states_.assign(static_cast<std::size_t>(ranks()), RankState{});
    for (std::size_t node = 0; node < agents_.size(); ++node) {
      if (!agents_[node]) continue;  // Await() tells
      const Json order = {{"attempt", attempt},
                          {"first_rank", static_cast<int>(node) * options_.ranks_per_node},
                          {"ranks", options_.ranks_per_node},
                          {"world_size", ranks()},
                          {"master_address", options_.nodes[0].address},
                          {"master_port", port},
                          {"threads", options_.threads},
                          {"program", options_.program},
                          {"job", options_.job},
                          {"env", options_.env}};
      WriteLine(agents_[node]->process.stdin_fd(), DumpJson({{"start", order}}));
    }
    return Await(until, [](const Agent& agent) { return agent.started; }, agents_.size());
  };
  const Status started = start();
  if (!started) Abandon();
  return started;
}

/// Ends whatever a failed start has left.
void RemoteLauncher::Abandon() {
  for (auto& agent : agents_) {
    if (agent) agent->process.CloseStdin();
  }
  for (auto& agent : agents_) {
    if (agent) agent->process.Wait(kLeaveTime);
    agent.reset();
  }
  states_.clear();
}

std::span<const RankState> RemoteLauncher::Wait(TimePoint until, std::stop_token stop) {
  const std::stop_callback wake(stop, [this] { ::eventfd_write(wake_.get(), 1); });
  Listen(until);
  return states_;
}

/// Waits until an agent has said something or `until` has passed, and takes all of it.
void RemoteLauncher::Listen(TimePoint until) {
  std::vector<pollfd> watched = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  TimePoint next = until;
  for (const auto& agent : agents_) {
    watched.push_back({.fd = agent ? agent->process.stdout_fd() : -1, .events = POLLIN, .revents = 0});
    if (agent) next = std::min(next, agent->heard + options_.silence);
  }
  const Duration wait = std::clamp<Duration>(next - SystemClock().Now(), Duration(0), std::chrono::minutes(1));
  ::poll(watched.data(), watched.size(), static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count()));
  eventfd_t ignored;
  ::eventfd_read(wake_.get(), &ignored);
  const TimePoint now = SystemClock().Now();
  for (std::size_t node = 0; node < agents_.size(); ++node) {
    if (!agents_[node]) continue;
    const bool readable = watched[node + 1].revents != 0;
    const bool open = !readable || agents_[node]->lines.Fill(agents_[node]->process.stdout_fd());
    if (readable) agents_[node]->heard = now;
    while (agents_[node]) {
      const auto line = agents_[node]->lines.Next();
      if (!line) break;
      Hear(node, *line);
    }
    if (!agents_[node]) continue;
    if (!open) {
      const auto ended = agents_[node]->process.Wait(kLeaveTime);
      Lose(node, fmt::format("is lost: {}", ended ? options_.nodes[node].command[0] + " ended with " + ended->ToString()
                                                  : "its connection closed"));
    } else if (now - agents_[node]->heard >= options_.silence) {
      Lose(node, fmt::format("is lost: it said nothing for {}", FormatDuration(options_.silence)));
    }
  }
}

void RemoteLauncher::Hear(std::size_t node, const std::string& line) {
  const auto event = ParseJson(line, "an event of an agent");
  // Programs that start the agent (a login shell, srun) may have words of their own.
  if (!event || !event->is_object()) return;
  if (const Status noted = Note(node, *event); !noted) Lose(node, "is lost: " + noted.error().ToString());
}

Status RemoteLauncher::Note(std::size_t node, const Json& event) {
  Agent& agent = *agents_[node];
  const int first = static_cast<int>(node) * options_.ranks_per_node;
  const auto rank_of = [&](const Json& json) -> Result<std::size_t> {
    const std::int64_t rank = MR_TRY(JsonInt(json, "rank"));
    if (rank < first || rank >= first + options_.ranks_per_node || states_.empty()) {
      return Fail(Code::kCorrupt, "its agent speaks of rank {}", rank);
    }
    return static_cast<std::size_t>(rank);
  };
  if (JsonFind(event, "port") != nullptr) {
    agent.port = static_cast<int>(MR_TRY(JsonInt(event, "port")));
  } else if (JsonFind(event, "refused") != nullptr) {
    agent.refusal =
        Error(Code::kIo, fmt::format("node {}: {}", options_.nodes[node].name, MR_TRY(JsonString(event, "refused"))));
  } else if (const Json* pids = JsonFind(event, "started")) {
    if (!pids->is_array() || static_cast<int>(pids->size()) != options_.ranks_per_node || states_.empty()) {
      return Fail(Code::kCorrupt, "its agent started other ranks than it was told to");
    }
    for (std::size_t i = 0; i < pids->size(); ++i) {
      RankState& state = states_[static_cast<std::size_t>(first) + i];
      state.pid = pids->at(i).get<std::int64_t>();
      state.node = options_.nodes[node].name;
    }
    agent.started = true;
  } else if (const Json* beat = JsonFind(event, "beat")) {
    RankState& state = states_[MR_TRY(rank_of(*beat))];
    state.beats = MR_TRY(JsonUint(*beat, "beats"));
    if (JsonFind(*beat, "step") != nullptr) state.step = MR_TRY(JsonUint(*beat, "step"));
  } else if (const Json* written = JsonFind(event, "line")) {
    const std::size_t rank = MR_TRY(rank_of(*written));
    const Json* error = JsonFind(*written, "error");
    const bool to_error = error != nullptr && error->is_boolean() && error->get<bool>();
    const std::string text = MR_TRY(JsonString(*written, "text"));
    // A full disk must not end the training.
    WriteLine((to_error ? logs_[rank].error : logs_[rank].out).get(), text);
    if (options_.on_line) {
      options_.on_line(static_cast<int>(rank), to_error ? LocalLauncher::Stream::kError : LocalLauncher::Stream::kOut,
                       text);
    }
  } else if (const Json* exit = JsonFind(event, "exit")) {
    const int code = static_cast<int>(MR_TRY(JsonInt(*exit, "code")));
    const int signal = static_cast<int>(MR_TRY(JsonInt(*exit, "signal")));
    states_[MR_TRY(rank_of(*exit))].exit = ExitState{.exit_code = code, .signal = signal};
  }
  return {};
}

void RemoteLauncher::Lose(std::size_t node, const std::string& why) {
  losses_[node] = why;
  agents_[node].reset();
  if (states_.empty()) return;
  for (int i = 0; i < options_.ranks_per_node; ++i) {
    RankState& state = states_[node * static_cast<std::size_t>(options_.ranks_per_node) + static_cast<std::size_t>(i)];
    if (state.exit) continue;
    state.exit = ExitState{.signal = SIGKILL};
    state.cause = fmt::format("node {} {}", options_.nodes[node].name, why);
  }
}

void RemoteLauncher::Signal(int signal_number) {
  for (auto& agent : agents_) {
    if (agent) WriteLine(agent->process.stdin_fd(), DumpJson({{"signal", signal_number}}));
  }
}

std::string RemoteLauncher::ErrorTail(int rank, int lines) {
  return TailOf(options_.folder / "logs" / fmt::format("rank-{}.err", rank),
                logs_.at(static_cast<std::size_t>(rank)).error_start, lines);
}

}  // namespace millrace::jobs
